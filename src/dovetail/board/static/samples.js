// SPDX-License-Identifier: Apache-2.0
// The panel of samples over steps: texts, pictures, tables and histograms, side by side for several runs.
import { button, el, emptyState, errorBox, searchField, setText, swatch } from "./dom.js";
import { formatCount, formatMoment, formatNumber, toNumber } from "./format.js";
import { drawHistograms } from "./histogram.js";
import { atOrBefore } from "./series.js";

const ROWS = 200; // Of a table that are shown.
const KINDS = [
  { kind: "texts", path: "/api/texts", show: showText },
  { kind: "pictures", path: "/api/pictures", show: showPicture },
  { kind: "tables", path: "/api/tables", show: showTable },
  { kind: "histograms", path: "/api/histograms", show: showHistogram },
];

/** Returns the panel of samples. */
export function createSamples(app) {
  const slider = el("input", {
    type: "range",
    min: 0,
    step: 1,
    "aria-label": "Step",
    on: { input: () => choose(Number(slider.value)) },
  });
  const shown = el("output", { class: "step" });
  const older = button("Load older", () => loadOlder(), { hidden: true });
  const filter = searchField("Filter samples", "Filter by name", (text) =>
    app.set({ sample: text }, { replace: true }),
  );
  const bar = el(
    "div",
    { class: "bar" },
    el("label", { class: "slider long" }, "Step", slider, shown),
    older,
    el("span", { class: "spring" }),
    filter.node,
  );
  const body = el("div", { class: "samples" });
  const node = el("div", { class: "panel" }, bar, body);
  const seen = new Map(); // Also what is older than the newest answer: key -> list.
  let [steps, found, drawn] = [[], [], ""];

  const choose = (index) => app.set({ step: index >= steps.length - 1 ? null : steps[index] }, { replace: true });

  async function update() {
    const round = app.round;
    filter.set(app.view.sample);
    const details = await app.details();
    const asked = details.flatMap(({ tick, detail }) =>
      KINDS.flatMap((kind) => (detail?.[kind.kind] ?? []).map((name) => ({ tick, kind, name }))),
    );
    const loaded = await Promise.all(asked.map(load));
    if (round !== app.round) return;
    found = loaded.map(joined);
    draw();
  }

  /** Returns an answer with what is known to be before it. */
  function joined(each) {
    const older = (seen.get(keyOf(each)) ?? []).filter((one) => one.step < (each.list[0]?.step ?? 0));
    const list = [...older, ...each.list];
    seen.set(keyOf(each), list);
    return { ...each, list, more: older.length ? each.more && !older[0].isFirst : each.more };
  }

  function draw() {
    const words = app.view.sample.toLowerCase().split(/\s+/).filter(Boolean);
    const mine = found.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
    steps = [...new Set(mine.flatMap(({ list }) => list.map((each) => each.step)))].sort((a, b) => a - b);
    const at = app.view.step ?? steps.at(-1) ?? 0;
    const index = steps.findLastIndex((step) => step <= at);
    slider.max = Math.max(0, steps.length - 1);
    slider.value = Math.max(0, index);
    slider.setAttribute("aria-valuetext", `step ${steps[Math.max(0, index)] ?? 0}`);
    setText(shown, steps.length ? formatCount(steps[Math.max(0, index)]) : "");
    bar.hidden = !found.length;
    older.hidden = !mine.some((each) => each.more);
    const key = JSON.stringify([
      at,
      app.theme,
      app.view.sample,
      mine.map((each) => [
        keyOf(each),
        each.tick.slot,
        each.list.length,
        each.list.at(-1)?.step,
        each.list.at(-1)?.time,
        each.error?.message,
      ]),
    ]);
    if (key === drawn) return;
    drawn = key;
    const names = [...new Set(mine.map(({ kind, name }) => `${kind.kind}\n${name}`))];
    const closed = new Set([...body.querySelectorAll("details:not([open])")].map((each) => each.sampleKey));
    body.replaceChildren(
      ...names.map((each) =>
        section(
          each,
          mine.filter(({ kind, name }) => `${kind.kind}\n${name}` === each),
          at,
          !closed.has(each),
        ),
      ),
      ...(names.length ? [] : [nothing()]),
    );
  }

  function nothing() {
    if (!app.ticked.length)
      return emptyState("No run is ticked.", "Tick runs in the list to see their samples side by side.");
    if (found.length) return emptyState("No sample matches the filter.");
    return emptyState(
      "The ticked runs have written no samples.",
      "Evaluations write them: texts that a model makes, pictures, tables, histograms.",
    );
  }

  function section(key, parts, at, open) {
    const [kind, name] = key.split("\n");
    const details = el(
      "details",
      { open },
      el("summary", {}, el("h2", { text: name }), el("span", { class: "quiet", text: ` ${kind}` })),
      el(
        "div",
        { class: "columns-of-runs" },
        parts.map((part) => column(part, at)),
      ),
    );
    details.sampleKey = key;
    return details;
  }

  function column({ tick, kind, name, list, error }, at) {
    const title = el("header", {}, swatch(tick.style), el("strong", { text: tick.id }));
    const box = el("article", { class: "sample", "aria-label": `${name} of ${tick.id}` }, title);
    if (error) box.append(errorBox(error, "Not loaded:"));
    else if (!list.length) box.append(el("p", { class: "quiet", text: "None yet." }));
    else {
      const one = atOrBefore(list, at);
      title.append(
        el("span", { class: "quiet", text: `step ${formatCount(one.step)}`, title: formatMoment(one.time) }),
      );
      box.append(kind.show(app, tick, one, list, name));
    }
    return box;
  }

  async function load({ tick, kind, name }) {
    try {
      const answer = await app.data.get(kind.path, { run: tick.id, name });
      const list = [...(answer[kind.kind] ?? [])].sort((a, b) => a.step - b.step);
      return { tick, kind, name, list, more: Boolean(answer.more) };
    } catch (error) {
      return { tick, kind, name, list: [], error, more: false };
    }
  }

  async function loadOlder() {
    older.disabled = true;
    for (const each of found.filter((each) => each.more && each.list.length)) {
      try {
        const answer = await app.data.get(each.kind.path, {
          run: each.tick.id,
          name: each.name,
          before: each.list[0].step,
        });
        const list = [...(answer[each.kind.kind] ?? [])].sort((a, b) => a.step - b.step);
        each.list = [...list, ...each.list];
        each.more = Boolean(answer.more);
        if (!each.more && list.length) list[0].isFirst = true;
        seen.set(keyOf(each), each.list);
      } catch (error) {
        app.say(`Older samples of ${each.tick.id} could not be loaded. ${error.message}`);
      }
    }
    older.disabled = false;
    draw();
  }

  return { id: "samples", title: "Samples", node, update, focusFilter: () => filter.input.focus() };
}

function keyOf({ tick, kind, name }) {
  return JSON.stringify([tick.id, kind.kind, name]);
}

function showText(app, tick, one) {
  return el("pre", { class: "sample-text", tabIndex: 0, text: String(one.text ?? "") });
}

function showPicture(app, tick, one, list, name) {
  const address = app.data.picture(tick.id, one.file);
  const missing = () => el("p", { class: "quiet", text: "The picture is not there any more." });
  if (!address) return missing();
  return el("img", {
    class: "picture",
    alt: `${name} at step ${one.step}`,
    src: address,
    on: { error: (event) => event.target.replaceWith(missing()) },
  });
}

function showTable(app, tick, one) {
  const columns = one.columns ?? [];
  const rows = (one.rows ?? []).slice(0, ROWS);
  const left = (one.rows ?? []).length - rows.length;
  const cell = (value) =>
    toNumber(value) === null
      ? el("td", { text: typeof value === "object" ? JSON.stringify(value) : String(value) })
      : el("td", { class: "number", text: formatNumber(value) });
  const numbers = columns.map((_, index) => rows.length > 0 && rows.every((row) => toNumber(row[index]) !== null));
  const table = el(
    "table",
    {},
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        columns.map((text, index) =>
          el("th", { scope: "col", class: numbers[index] ? "number" : "", text: String(text) }),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((row) => el("tr", {}, row.map(cell))),
    ),
  );
  const rest = left > 0 ? el("p", { class: "quiet", text: `and ${formatCount(left)} more rows` }) : null;
  const note = one.note ? el("p", { class: "quiet", text: one.note }) : null;
  return el("div", { class: "scroll", tabIndex: 0 }, table, rest, note);
}

function showHistogram(app, tick, one, list, name) {
  const canvas = el("canvas", {
    class: "histogram",
    role: "img",
    "aria-label": `Histogram ${name} at step ${one.step}, ${formatNumber(one.edges[0])} to ${formatNumber(one.edges.at(-1))}`,
  });
  requestAnimationFrame(() =>
    drawHistograms(canvas, list, one, { color: tick.style.color, ink: app.ink, pick: (step) => app.set({ step }) }),
  );
  return canvas;
}
