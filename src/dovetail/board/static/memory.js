// SPDX-License-Identifier: Apache-2.0
// The panel of memory: what each part of the model takes, and what was predicted beside what was measured.
import { el, emptyState, errorBox, swatch } from "./dom.js";
import { formatBytes, formatCount, formatNamed } from "./format.js";
import { pathParts } from "./tree.js";

/** Returns the panel. */
export function createMemory(app) {
  const on = el("input", {
    class: "search",
    placeholder: "tpu-v5p-8",
    "aria-label": "Predict for",
    spellcheck: false,
    on: { change: () => app.set({ on: on.value.trim() }) },
  });
  const bar = el(
    "div",
    { class: "bar" },
    el("label", { class: "labelled", title: "Hardware for which memory and speed are predicted" }, "Predict for", on),
  );
  const body = el("div", {});
  const node = el("div", { class: "panel" }, bar, body);
  const open = new Set(); // Paths that are unfolded, in all runs alike.
  let [found, drawn] = [[], ""];

  async function update() {
    const round = app.round;
    bar.hidden = app.data.exported;
    if (document.activeElement !== on) on.value = app.view.on;
    if (!body.childElementCount)
      body.replaceChildren(el("p", { class: "quiet waits", text: "Working out the parts ..." }));
    const answers = await Promise.all(
      app.present().map(async (tick) => {
        try {
          return { tick, memory: await app.data.get("/api/memory", { run: tick.id, on: app.view.on || null }) };
        } catch (error) {
          return { tick, error };
        }
      }),
    );
    if (round !== app.round) return;
    const key = JSON.stringify([
      answers.map(({ tick, memory, error }) => [tick.id, tick.slot, memory, error?.message]),
      app.theme,
    ]);
    if (key === drawn) return;
    [found, drawn] = [answers, key];
    draw();
  }

  function draw() {
    const most = Math.max(1, ...found.map(({ memory }) => bytesOf(partTree(memory?.parts ?? []))));
    const focused = document.activeElement?.dataset?.path;
    if (!found.length)
      return body.replaceChildren(
        emptyState("No run is ticked.", "Tick a run to see what its parts take, and what was predicted."),
      );
    body.replaceChildren(comparison(), ...found.map((each) => parts(each, most)));
    if (focused !== undefined)
      [...node.querySelectorAll("[data-path]")].find((each) => each.dataset.path === focused)?.focus();
  }

  function comparison() {
    const good = found.filter(({ memory }) => memory?.predicted || memory?.measured);
    const names = [
      ...new Set(
        good.flatMap(({ memory }) => [...Object.keys(memory.predicted ?? {}), ...Object.keys(memory.measured ?? {})]),
      ),
    ];
    if (!names.length)
      return el(
        "section",
        {},
        el("h2", { text: "Predicted and measured" }),
        el("p", { class: "quiet", text: "Nothing is predicted or measured for these runs." }),
      );
    const runs = el(
      "tr",
      {},
      el("td", {}),
      good.map(({ tick }) => el("th", { scope: "colgroup", colSpan: 2 }, swatch(tick.style), ` ${tick.id}`)),
    );
    const kinds = el(
      "tr",
      {},
      el("td", {}),
      good.flatMap(() =>
        ["predicted", "measured"].map((text) => el("th", { scope: "col", class: "number quiet", text })),
      ),
    );
    const cell = (values, name) => {
      const plain = typeof (values ?? {})[name] === "string" && !["nan", "inf", "-inf"].includes(values[name]);
      return el("td", { class: plain ? "" : "number", text: formatNamed(name, values?.[name] ?? null) });
    };
    const rows = names.map((name) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", text: wordsOf(name) }),
        good.flatMap(({ memory }) => [cell(memory.predicted, name), cell(memory.measured, name)]),
      ),
    );
    return el(
      "section",
      {},
      el("h2", { text: "Predicted and measured" }),
      el(
        "div",
        { class: "scroll", tabIndex: 0 },
        el("table", { class: "facts" }, el("thead", {}, runs, kinds), el("tbody", {}, rows)),
      ),
    );
  }

  function parts({ tick, memory, error }, most) {
    const title = el("h2", {}, swatch(tick.style), ` ${tick.id}`);
    if (error) return el("section", {}, title, errorBox(error, "Not loaded:"));
    if (!memory.parts?.length)
      return el(
        "section",
        {},
        title,
        el("p", {
          class: "quiet",
          text: memory.note ?? "The parts of this model are not known: its config could not be read.",
        }),
      );
    const root = partTree(memory.parts);
    const sum = el("p", {
      class: "quiet",
      text: `${formatCount(root.parameters)} parameters, ${formatBytes(root.parameterBytes)}; optimizer ${formatBytes(root.optimizerBytes)}`,
    });
    const key = el(
      "p",
      { class: "key-of-bars" },
      el("span", { class: "bar-of parameters" }),
      "parameters",
      el("span", { class: "bar-of optimizer" }),
      "optimizer",
    );
    return el(
      "section",
      {},
      title,
      sum,
      memory.note ? el("p", { class: "quiet", text: memory.note }) : null,
      key,
      el("div", { class: "parts", role: "table", "aria-label": `Memory of ${tick.id}` }, lines(root, most, 0)),
    );
  }

  function lines(node, total, depth) {
    return [...node.children.values()]
      .sort((a, b) => bytesOf(b) - bytesOf(a))
      .flatMap((child) => {
        const unfolded = open.has(child.path) || (depth === 0 && !open.has(`-${child.path}`));
        return [line(child, total, depth, unfolded), ...(unfolded ? lines(child, total, depth + 1) : [])];
      });
  }

  function line(part, total, depth, unfolded) {
    const toggle = () => {
      open.delete(unfolded ? part.path : `-${part.path}`);
      open.add(unfolded ? `-${part.path}` : part.path);
      draw();
    };
    const name = part.children.size
      ? el(
          "button",
          { type: "button", class: "fold", "aria-expanded": String(unfolded), title: part.path, on: { click: toggle } },
          el("span", { class: "chevron", "aria-hidden": "true" }),
          part.name,
        )
      : el("span", { class: "unfoldable", text: part.name, title: part.path });
    if (part.children.size) name.dataset.path = part.path;
    const cell = el("span", { class: "part-name", role: "rowheader" }, name);
    cell.style.paddingLeft = `${depth * 14}px`;
    const bar = (kind, bytes) => {
      const each = el("span", { class: `bar-of ${kind}` });
      each.style.width = `${(100 * bytes) / total}%`;
      return each;
    };
    const bars = el(
      "span",
      { class: "bars", role: "cell" },
      bar("parameters", part.parameterBytes),
      bar("optimizer", part.optimizerBytes),
    );
    const text = `${formatBytes(part.parameterBytes)} of parameters, ${formatBytes(part.optimizerBytes)} of the optimizer`;
    return el(
      "div",
      { class: "part", role: "row", title: `${part.path}: ${text}` },
      cell,
      bars,
      el("span", { class: "number", role: "cell", text: formatBytes(bytesOf(part)) }),
      el("span", { class: "number quiet", role: "cell", text: formatCount(part.parameters) }),
    );
  }

  return { id: "memory", title: "Memory", node, update };
}

/** step_seconds is the step time, peak_bytes the peak memory: the values have their units. */
function wordsOf(name) {
  return name
    .replace(/_interval$/, ", within")
    .replace(/_seconds(?=$|,)/, " time")
    .replace(/_bytes$/, " memory")
    .replace(/^mfu$/, "MFU")
    .replaceAll("_", " ");
}

function bytesOf(part) {
  return part.parameterBytes + part.optimizerBytes;
}

/** Returns parts of {path, parameters, parameter_bytes, optimizer_bytes} as a tree in which each has the sum of its own. */
export function partTree(parts) {
  const create = (name, path) => ({
    name,
    path,
    parameters: 0,
    parameterBytes: 0,
    optimizerBytes: 0,
    children: new Map(),
  });
  const root = create("", "");
  for (const part of parts) {
    let [node, path] = [root, ""];
    const add = (to) => {
      to.parameters += part.parameters ?? 0;
      to.parameterBytes += part.parameter_bytes ?? 0;
      to.optimizerBytes += part.optimizer_bytes ?? 0;
    };
    add(root);
    for (const name of pathParts(String(part.path))) {
      path = name.startsWith("[") || !path ? path + name : `${path}.${name}`;
      if (!node.children.has(name)) node.children.set(name, create(name, path));
      node = node.children.get(name);
      add(node);
    }
  }
  return root;
}
