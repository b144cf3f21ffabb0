// SPDX-License-Identifier: Apache-2.0
// The panel of the log of one run: errors and warnings coloured, a filter, and the newest line in sight unless one scrolls.
import { choice, el, emptyState, errorBox, searchField, selection, setText } from "./dom.js";
import { formatCount, formatMoment } from "./format.js";
import { LEVELS } from "./view.js";

const LINES = 2000;

/** Returns the panel. */
export function createLog(app) {
  const which = selection("Run", (run) => app.set({ of: run, file: "" }));
  const file = selection("File", (name) => app.set({ file: name }));
  const level = choice(
    "Level",
    [
      ["info", "All"],
      ["warning", "Warnings"],
      ["error", "Errors"],
    ],
    (value) => app.set({ level: value }),
  );
  const filter = searchField("Filter the log", "Filter lines", (text) => app.set({ log: text }, { replace: true }));
  const count = el("span", { class: "quiet", role: "status" });
  const lines = el("ol", { class: "log", tabIndex: 0, role: "log", "aria-label": "Log" });
  const other = el("div", {});
  const node = el(
    "div",
    { class: "panel panel-log" },
    el("div", { class: "bar" }, which.node, file.node, level.node, count, el("span", { class: "spring" }), filter.node),
    lines,
    other,
  );
  let drawn = "";

  async function update() {
    const round = app.round;
    level.set(app.view.level);
    filter.set(app.view.log);
    const runs = app.present();
    const one = runs.find((tick) => tick.id === app.view.of) ?? runs[0];
    which.set(
      runs.map((tick) => [tick.id, tick.id]),
      one?.id ?? "",
    );
    which.node.hidden = !one;
    if (!one) file.node.hidden = true;
    if (!one) return show([], emptyState("No run is ticked.", "Tick a run to read its log."));
    const asked = app.data.exported ? {} : { lines: LINES, file: app.view.file || null };
    try {
      const found = await app.data.get("/api/log", { run: one.id, ...asked });
      if (round === app.round) draw(one, found);
    } catch (error) {
      if (round === app.round) show([], errorBox(error, "The log could not be read."));
    }
  }

  function draw(one, found) {
    const files = found.files ?? [];
    file.node.hidden = files.length < 2 || app.data.exported;
    file.set([["", "first process, supervisor"], ...files.map((name) => [name, name])], app.view.file);
    const words = app.view.log.toLowerCase().split(/\s+/).filter(Boolean);
    const least = LEVELS.indexOf(app.view.level);
    const shown = found.lines.filter(
      (line) =>
        LEVELS.indexOf(line.level) >= least && words.every((word) => String(line.text).toLowerCase().includes(word)),
    );
    const key = JSON.stringify([
      one.id,
      app.view.file,
      app.view.log,
      app.view.level,
      found.lines.length,
      found.lines.at(-1),
    ]);
    if (key === drawn) return;
    const atEnd =
      lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40 ||
      !drawn.startsWith(JSON.stringify([one.id, app.view.file]).slice(0, -1));
    const top = lines.scrollTop;
    drawn = key;
    setText(
      count,
      shown.length === found.lines.length
        ? `${formatCount(shown.length)} lines`
        : `${formatCount(shown.length)} of ${formatCount(found.lines.length)} lines`,
    );
    count.title = (found.files ?? []).join("\n");
    const nothing = found.lines.length
      ? emptyState("No line matches.")
      : emptyState(
          "This run has no log.",
          "Runs that `dovetail launch` starts write one for each process, beside their metrics.",
        );
    show(shown.map(lineOf), shown.length ? null : nothing, key);
    lines.scrollTop = atEnd ? lines.scrollHeight : top;
  }

  function show(items, instead, key = "") {
    lines.replaceChildren(...items);
    lines.hidden = items.length === 0;
    other.replaceChildren(...(instead ? [instead] : []));
    if (!key) setText(count, "");
    drawn = key;
  }

  return { id: "log", title: "Log", node, update, focusFilter: () => filter.input.focus() };
}

function lineOf({ time, level, text }) {
  const moment =
    typeof time === "number"
      ? el("time", { text: formatMoment(time).slice(11), title: formatMoment(time) })
      : el("span", {});
  return el(
    "li",
    { class: LEVELS.includes(level) ? `level-${level}` : "" },
    moment,
    el("span", { class: "word", title: level, text: { error: "×", warning: "!" }[level] ?? "" }),
    el("span", { class: "line", text: String(text) }),
  );
}
