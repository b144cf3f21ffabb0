// SPDX-License-Identifier: Apache-2.0
// The panel that says what the ticked runs are, side by side: state, errors, times, and the last value of each metric.
import { columnOf, COLUMNS, STATE_NOTES } from "./columns.js";
import { el, emptyState, setText, swatch } from "./dom.js";

const FACTS = [
  "state",
  "recipe",
  "progress",
  "loss",
  "rate",
  "mfu",
  "goodput",
  "left",
  "seconds",
  "started",
  "updated",
  "phase",
];

/** Returns the panel. */
export function createOverview(app) {
  const node = el("div", { class: "panel" });
  let drawn = "";

  function update() {
    const runs = app.ticked;
    const present = runs.filter((tick) => tick.run);
    const key = JSON.stringify([runs.map((tick) => [tick.slot, tick.run ?? tick.id]), app.theme]);
    if (key === drawn) return times(present);
    drawn = key;
    if (!runs.length)
      return node.replaceChildren(emptyState("No run is ticked.", "Tick runs in the list to see them side by side."));
    const metrics = [...new Set(present.flatMap(({ run }) => Object.keys(run.last ?? {})))].sort();
    node.replaceChildren(
      ...runs.map(trouble).filter(Boolean),
      table("Runs", present, FACTS, (name) => COLUMNS[name]),
      metrics.length ? table("Last values", present, metrics, (name) => columnOf(`last:${name}`)) : "",
    );
  }

  function table(title, runs, names, columnFor) {
    const head = el(
      "tr",
      {},
      el("th", {}),
      runs.map((tick) => el("th", { scope: "col" }, swatch(tick.style), ` ${tick.id}`)),
    );
    const rows = names.map((name) => {
      const column = columnFor(name);
      const cells = runs.map(({ run }) => {
        const cell = el("td", {
          text: column.text(run, app.now()),
          title: name === "state" ? (STATE_NOTES[run.state] ?? "") : "",
        });
        if (name === "state") cell.dataset.state = run.state;
        return Object.assign(cell, { refresh: () => setText(cell, column.text(run, app.now())) });
      });
      return el("tr", {}, el("th", { scope: "row", text: column.title, title: column.note ?? "" }), cells);
    });
    return el(
      "section",
      {},
      el("h2", { text: title }),
      el(
        "div",
        { class: "scroll", tabIndex: 0 },
        el("table", { class: "facts" }, el("thead", {}, head), el("tbody", {}, rows)),
      ),
    );
  }

  function times() {
    for (const cell of node.querySelectorAll("td")) cell.refresh?.();
  }

  return { id: "overview", title: "Overview", node, update };
}

/** Returns what is wrong with a run, or null. */
function trouble({ id, run }) {
  if (!run)
    return el(
      "div",
      { class: "error-box", role: "alert" },
      el("strong", { text: id }),
      " is not in the directory any more.",
    );
  const lines = [run.error, ...(run.problems ?? [])].filter(Boolean);
  if (!lines.length) return null;
  return el(
    "div",
    { class: "error-box" },
    el("strong", { text: id }),
    el(
      "ul",
      {},
      lines.map((text) => el("li", { text })),
    ),
  );
}
