// SPDX-License-Identifier: Apache-2.0
// The list of runs: a grid of which only the rows in sight exist, so that thousands stay fluid.
import {
  columnKeys,
  columnOf,
  COLUMNS,
  filterRuns,
  share,
  sortRuns,
  STATE_NOTES,
  STATE_WORDS,
  USUAL_COLUMNS,
} from "./columns.js";
import { button, checkbox, eachFrame, el, emptyState, searchField, setText, swatch } from "./dom.js";
import { toggled, toggleTick } from "./view.js";

const ROW = 30; // Height in px, as in the style.
const AROUND = 8; // Rows made above and below what is in sight.
const MOST_TICKS = 40; // That are made at once.
const TICK = 34; // Width in px of the first column.

/** Returns the list: {node, update, focusFilter}. */
export function createRunList(app) {
  const filter = searchField("Filter runs", "Filter runs: text, -text, state:failed", (text) =>
    app.set({ filter: text }, { replace: true }),
  );
  const count = el("span", { class: "quiet", role: "status" });
  const columnsButton = button("Columns", () => toggleColumns(), {
    "aria-expanded": "false",
    "aria-controls": "columns",
  });
  const all = button(
    "Tick these",
    () =>
      app.set({
        runs: shown.reduce(
          (ticks, run) => (ticks.includes(run.id) ? ticks : toggleTick(ticks, run.id)),
          app.view.runs ?? [],
        ),
      }),
    { title: "Tick all that the filter leaves" },
  );
  const none = button("Untick", () => app.set({ runs: [] }), { title: "Tick no run" });
  const wide = button("", () => app.set({ wide: !app.view.wide }), { class: "only-wide" });
  const chooser = el("fieldset", { class: "columns", id: "columns", hidden: true });
  const head = el("div", { class: "row head", role: "row", "aria-rowindex": "1" });
  const body = el("div", { class: "rows", role: "rowgroup" });
  const grid = el(
    "div",
    {
      class: "grid",
      role: "grid",
      tabIndex: 0,
      "aria-label": "Runs",
      "aria-multiselectable": "true",
      on: { keydown: (event) => onKey(event), scroll: eachFrame(() => draw()), focus: () => draw() },
    },
    head,
    body,
  );
  const empty = el("div", { class: "list-empty", hidden: true });
  const notes = el("ul", { class: "notes quiet" });
  const node = el(
    "section",
    { class: "list", "aria-label": "Runs" },
    el("div", { class: "bar" }, filter.node, count, el("span", { class: "spring" }), all, none, columnsButton, wide),
    chooser,
    grid,
    empty,
    notes,
  );
  const pool = new Map(); // Row number -> its element.
  let [shown, keys, active, drawnKeys] = [[], [], "", ""];
  new ResizeObserver(eachFrame(() => draw())).observe(grid);

  function update() {
    filter.set(app.view.filter);
    keys = ["name", ...(app.view.columns ?? USUAL_COLUMNS)].filter((key) => columnOf(key));
    shown = sortRuns(filterRuns(app.runs, app.view.filter), app.view.sort);
    const text = shown.length === app.runs.length ? `${app.runs.length}` : `${shown.length} of ${app.runs.length}`;
    setText(count, `${text} ${app.runs.length === 1 ? "run" : "runs"}`);
    none.hidden = !app.ticked.length;
    all.hidden = !app.view.filter || shown.length > MOST_TICKS || shown.every((run) => app.view.runs?.includes(run.id));
    setText(wide, app.view.wide ? "◂ Narrow" : "Widen ▸");
    notes.hidden = !app.problems.length;
    if (notes.dataset.shown !== app.problems.join("\n"))
      notes.replaceChildren(...app.problems.map((text) => el("li", { text })));
    notes.dataset.shown = app.problems.join("\n");
    drawHead();
    drawEmpty();
    for (const row of pool.values()) row.dataset.stale = "1";
    draw();
  }

  function drawEmpty() {
    const nothing = shown.length === 0 && app.loaded;
    empty.hidden = !nothing;
    grid.hidden = nothing;
    if (!nothing) return;
    const command = el("code", { text: "dovetail train tiny-lm" });
    empty.replaceChildren(
      app.runs.length
        ? emptyState(
            "No run matches the filter.",
            button("Clear the filter", () => (app.set({ filter: "" }), (filter.input.value = ""))),
          )
        : emptyState(
            "There is no run here yet.",
            app.directory ? `Runs below ${app.directory} show up by themselves.` : "",
            el("span", {}, "Start one: ", command),
          ),
    );
  }

  function drawHead() {
    const key = JSON.stringify([keys, app.view.sort]);
    if (key === drawnKeys) return;
    drawnKeys = key;
    const widths = keys.map((each) =>
      each === "name" ? `minmax(${columnOf(each).width}px, 420px)` : `${columnOf(each).width}px`,
    );
    grid.style.setProperty("--columns", `${TICK}px ${widths.join(" ")}`);
    grid.style.setProperty("--width", `${TICK + keys.reduce((sum, each) => sum + columnOf(each).width, 0)}px`);
    grid.setAttribute("aria-colcount", String(keys.length + 1));
    const cells = keys.map((each) => {
      const column = columnOf(each);
      const [up, down] = [app.view.sort === each, app.view.sort === `-${each}`];
      const sort = button(
        column.title,
        () => app.set({ sort: up ? `-${each}` : down ? each : column.number ? `-${each}` : each }),
        { title: column.note ?? "", value: each },
      );
      if (up || down) sort.append(el("span", { class: "arrow", "aria-hidden": "true", text: up ? "↑" : "↓" }));
      return el(
        "div",
        {
          class: `cell ${column.number ? "number" : ""} ${each === "name" ? "name" : ""}`,
          role: "columnheader",
          "aria-sort": up ? "ascending" : down ? "descending" : "none",
        },
        sort,
      );
    });
    const focused = head.contains(document.activeElement) ? document.activeElement.value : null;
    head.replaceChildren(el("div", { class: "cell tick", role: "columnheader", "aria-label": "Ticked" }), ...cells);
    if (focused) head.querySelector(`button[value="${CSS.escape(focused)}"]`)?.focus();
    pool.clear();
    body.replaceChildren();
  }

  function draw() {
    if (grid.hidden || !grid.clientHeight) return;
    body.style.height = `${shown.length * ROW}px`;
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - AROUND);
    const last = Math.min(shown.length, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW) + AROUND);
    const free = [...pool.keys()].filter((index) => index < first || index >= last);
    for (let index = first; index < last; index++) {
      let row = pool.get(index);
      if (!row) {
        const from = free.pop();
        row = from === undefined ? createRow() : pool.get(from);
        if (from !== undefined) pool.delete(from);
        pool.set(index, row);
        row.dataset.stale = "1";
      }
      if (row.dataset.stale || row.runId !== shown[index].id) fill(row, shown[index], index);
    }
    for (const index of free) {
      pool.get(index).remove();
      pool.delete(index);
    }
    const at = shown.findIndex((run) => run.id === active);
    for (const [index, row] of pool) row.classList.toggle("active", index === at);
    if (at >= 0 && pool.has(at)) grid.setAttribute("aria-activedescendant", pool.get(at).id);
    else grid.removeAttribute("aria-activedescendant");
  }

  function createRow() {
    const tick = el("div", { class: "cell tick", role: "gridcell" });
    const row = el(
      "div",
      { class: "row", role: "row", on: { click: (event) => onClick(event, row) } },
      tick,
      keys.map((key) =>
        el("div", {
          class: `cell ${columnOf(key).number ? "number" : ""} ${key === "name" ? "name" : ""}`,
          role: "gridcell",
        }),
      ),
    );
    body.append(row);
    return row;
  }

  function fill(row, run, index) {
    delete row.dataset.stale;
    row.runId = run.id;
    row.id = `row-${index}`;
    row.style.top = `${index * ROW}px`;
    row.setAttribute("aria-rowindex", String(index + 2));
    const tick = app.ticked.find((each) => each.id === run.id);
    row.setAttribute("aria-selected", String(Boolean(tick)));
    row.firstChild.replaceChildren(tick ? swatch(tick.style) : el("span", { class: "box" }));
    keys.forEach((key, column) => {
      const cell = row.children[column + 1];
      const text = columnOf(key).text(run, app.now());
      if (key === "state") fillState(cell, run);
      else if (key === "progress") fillProgress(cell, run, text);
      else if (key === "name") fillName(cell, text);
      else setText(cell, text);
      cell.title =
        key === "name"
          ? [run.id, run.error, ...(run.problems ?? [])].filter(Boolean).join("\n")
          : key === "error"
            ? text
            : cell.title;
      if (key === "name") cell.classList.toggle("problem", Boolean(run.problems?.length));
    });
  }

  function onClick(event, row) {
    active = row.runId;
    const alone = !event.target.closest(".tick") && (event.ctrlKey || event.metaKey);
    app.set({ runs: alone ? [row.runId] : toggleTick(app.view.runs ?? [], row.runId) });
  }

  function onKey(event) {
    if (event.target !== grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = shown.findIndex((run) => run.id === active);
    const page = Math.max(1, Math.floor(grid.clientHeight / ROW) - 2);
    const moves = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: shown.length - 1,
    };
    if (event.key in moves && shown.length) {
      const to = Math.min(shown.length - 1, Math.max(0, moves[event.key]));
      active = shown[to].id;
      const [top, bottom] = [to * ROW, (to + 2) * ROW]; // The head covers a row.
      if (top < grid.scrollTop) grid.scrollTop = top;
      else if (bottom > grid.scrollTop + grid.clientHeight) grid.scrollTop = bottom - grid.clientHeight;
      draw();
    } else if (event.key === " " && at >= 0) app.set({ runs: toggleTick(app.view.runs ?? [], active) });
    else if (event.key === "Enter" && at >= 0)
      app.set({ runs: [active], tab: app.view.tab === "runs" ? "curves" : app.view.tab });
    else return;
    event.preventDefault();
  }

  function toggleColumns() {
    chooser.hidden = !chooser.hidden;
    columnsButton.setAttribute("aria-expanded", String(!chooser.hidden));
    if (chooser.hidden) return;
    const chosen = () => app.view.columns ?? USUAL_COLUMNS;
    const known = columnKeys(app.runs);
    const boxes = [...known, ...chosen().filter((key) => columnOf(key) && !known.includes(key))].map((key) => {
      const column = columnOf(key);
      const box = checkbox(column.title, () => app.set({ columns: inOrder(toggled(chosen(), key)) }), column.note);
      box.set(chosen().includes(key));
      return box.node;
    });
    const usual = button("As usual", () => (app.set({ columns: null }), (chooser.hidden = true), toggleColumns()));
    chooser.replaceChildren(el("legend", { text: "Columns" }), ...boxes, usual);
    chooser.querySelector("input")?.focus();
  }

  return { node, update, focusFilter: () => filter.input.focus(), focus: () => grid.focus() };
}

function inOrder(keys) {
  const fixed = Object.keys(COLUMNS);
  const place = (key) => (fixed.includes(key) ? fixed.indexOf(key) : fixed.length);
  return [...keys].sort((a, b) => place(a) - place(b));
}

/** Where there is no room, what is cut is the path above: names in one directory often begin alike. */
function fillName(cell, id) {
  if (cell.textContent === id) return;
  const cut = id.lastIndexOf("/") + 1;
  cell.replaceChildren(
    el("span", { class: "above", text: id.slice(0, cut) }),
    el("span", { class: "own", text: id.slice(cut) }),
  );
}

function fillState(cell, run) {
  const word = STATE_WORDS[run.state] ?? String(run.state);
  if (cell.dataset.state === run.state && cell.childElementCount) return;
  cell.dataset.state = run.state;
  cell.title = [STATE_NOTES[run.state], run.error].filter(Boolean).join("\n");
  cell.replaceChildren(el("span", { class: "state" }, el("span", { class: "dot", "aria-hidden": "true" }), word));
}

function fillProgress(cell, run, text) {
  const part = share(run);
  if (!cell.childElementCount)
    cell.replaceChildren(el("span", { class: "progress-text" }), el("span", { class: "progress" }, el("span")));
  setText(cell.firstChild, text);
  cell.lastChild.hidden = part === null;
  cell.lastChild.firstChild.style.width = `${100 * (part ?? 0)}%`;
  cell.dataset.state = run.state;
  cell.title = part === null ? "" : `${(100 * part).toFixed(1)} %`;
}
