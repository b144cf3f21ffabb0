// SPDX-License-Identifier: Apache-2.0
// The panel of configs: how the ticked runs differ, and the whole tree of one.
import { breakable, button, checkbox, el, emptyState, errorBox, searchField, selection, swatch } from "./dom.js";
import { formatCount } from "./format.js";
import { configDifferences, configTree, filterLines } from "./tree.js";

const SHOWN = 400; // Paths in the table of differences.

/** Returns the panel of configs. */
export function createConfig(app) {
  const filter = searchField("Filter the config", "Filter by path or value", (text) =>
    app.set({ config: text }, { replace: true }),
  );
  const which = selection("Run", (run) => app.set({ of: run }));
  const when = selection("Of steps", (step) => ((at = step), draw()));
  const same = checkbox("what is equal, too", (on) => app.set({ same: on }));
  const unfold = button("Unfold all", () => unfolded(body));
  const fold = button("Fold all", () => body.querySelectorAll(".tree details").forEach((each) => (each.open = false)));
  const differences = el("div", {});
  const body = el("div", { class: "tree" });
  const heading = el("h2", {}, "All of ", which.node, when.node, el("span", { class: "spring" }), unfold, fold);
  const node = el(
    "div",
    { class: "panel" },
    el("div", { class: "bar" }, filter.node, same.node),
    differences,
    el("section", {}, heading, body),
  );
  let [at, details, drawn] = ["", [], ""];

  async function update() {
    const round = app.round;
    filter.set(app.view.config);
    same.set(app.view.same);
    const found = await app.details();
    if (round !== app.round) return;
    details = found;
    draw();
  }

  function draw() {
    const usable = details.filter(({ detail }) => detail);
    const one = usable.find(({ tick }) => tick.id === app.view.of) ?? usable[0];
    const changes = (one?.detail.config_at ?? []).filter((each) => Array.isArray(each.config) && each.last !== null);
    const change = changes.find((each) => String(each.step) === at);
    const config = change?.config ?? one?.detail.config ?? [];
    // Folds stay until one of these changes.
    const known = details.map(({ tick, detail, error }) => [tick.id, tick.slot, detail?.config, error?.message]);
    const key = JSON.stringify([known, changes.length, app.theme, app.view.config, app.view.same, one?.tick.id, at]);
    if (key === drawn) return;
    drawn = key;
    heading.hidden = !one;
    which.set(
      usable.map(({ tick }) => [tick.id, tick.id]),
      one?.tick.id ?? "",
    );
    when.node.hidden = !changes.length;
    when.set(
      [
        ["", "now"],
        ...changes.map((each) => [String(each.step), `steps ${formatCount(each.step)} to ${formatCount(each.last)}`]),
      ],
      change ? at : "",
    );
    differences.replaceChildren(...errors(), ...(usable.length > 1 ? [differenceTable(usable)] : []));
    body.replaceChildren(
      one
        ? tree(config)
        : emptyState(
            app.ticked.length ? "There is no config to show." : "No run is ticked.",
            "Tick a run to see its config, two or more to see how they differ.",
          ),
    );
  }

  function errors() {
    return details.filter(({ error }) => error).map(({ tick, error }) => errorBox(error, `${tick.id}:`));
  }

  function differenceTable(usable) {
    const { paths, same: equal } = configDifferences(usable.map(({ detail }) => detail.config ?? []));
    const lines = new Map(usable.flatMap(({ detail }) => detail.config ?? []));
    const all = app.view.same
      ? [...lines.keys()].map(
          (path) => paths.find((each) => each.path === path) ?? { path, values: usable.map(() => lines.get(path)) },
        )
      : paths;
    const words = app.view.config.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = all.filter(({ path, values }) =>
      words.every((word) => [path, ...values].join(" ").toLowerCase().includes(word)),
    );
    const differ = new Set(paths.map((each) => each.path));
    const head = el(
      "tr",
      {},
      el("th", { scope: "col", text: "Path" }),
      usable.map(({ tick }) => el("th", { scope: "col" }, swatch(tick.style), ` ${tick.id}`)),
    );
    const rows = shown.slice(0, SHOWN).map(({ path, values }) =>
      el(
        "tr",
        { class: differ.has(path) ? "differs" : "" },
        el("th", { scope: "row" }, breakable(path)),
        values.map((value) => el("td", { class: value === null ? "quiet" : "" }, breakable(value ?? "not set"))),
      ),
    );
    const title = paths.length
      ? `${formatCount(paths.length)} differ, ${formatCount(equal)} are equal`
      : `All ${formatCount(equal)} are equal`;
    const rest =
      shown.length > SHOWN
        ? el("p", { class: "quiet", text: `and ${formatCount(shown.length - SHOWN)} more: filter to see them` })
        : null;
    return el(
      "section",
      {},
      el("h2", { text: title }),
      rows.length
        ? el(
            "div",
            { class: "scroll", tabIndex: 0 },
            el("table", { class: "diff" }, el("thead", {}, head), el("tbody", {}, rows)),
          )
        : null,
      rest,
    );
  }

  function tree(config) {
    if (!config.length) return emptyState("This run has no config that could be read.");
    const found = filterLines(config, app.view.config);
    if (!found.length) return emptyState("No path or value matches the filter.");
    const root = configTree(found);
    const all = app.view.config !== "";
    return el(
      "div",
      {},
      root.value ? el("p", { class: "root-value", text: root.value }) : null,
      [...root.children.values()].map((child) => branch(child, all, 0)),
    );
  }

  return { id: "config", title: "Config", node, update, focusFilter: () => filter.input.focus() };
}

/** Returns a leaf, or what can be folded: its inside is made when it is first unfolded. */
function branch(node, all, depth) {
  const name = el("span", { class: "key", text: node.name });
  const value = node.value === null ? null : el("span", { class: "value", text: node.value });
  if (!node.children.size) return el("div", { class: "leaf", title: node.path }, name, value);
  const details = el(
    "details",
    { title: "" },
    el(
      "summary",
      { title: node.path },
      name,
      value ?? el("span", { class: "quiet", text: String(node.children.size) }),
    ),
  );
  const fill = () =>
    details.childElementCount === 1 &&
    details.append(
      el(
        "div",
        { class: "inside" },
        [...node.children.values()].map((child) => branch(child, all, depth + 1)),
      ),
    );
  details.fill = fill;
  details.addEventListener("toggle", () => details.open && fill());
  if (all || depth < 1) {
    details.open = true;
    fill();
  }
  return details;
}

function unfolded(within) {
  for (const each of within.querySelectorAll("details")) {
    each.fill();
    each.open = true;
    if (each.querySelector("details:not([open])")) unfolded(each.lastChild);
  }
}
