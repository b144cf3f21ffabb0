// SPDX-License-Identifier: Apache-2.0
// The page: what is seen (the view, in the hash of the address), what is known (data), and who draws it.
import { createConfig } from "./config.js";
import { createCurves } from "./curves.js";
import { createData } from "./data.js";
import { el, errorBox, setText } from "./dom.js";
import { createBorder, createHelp, createTabs, createTop } from "./frame.js";
import { createGoodput } from "./goodput.js";
import { createLog } from "./log.js";
import { createMemory } from "./memory.js";
import { createOverview } from "./overview.js";
import { runStyle } from "./palette.js";
import { createRunList } from "./runs.js";
import { createSamples } from "./samples.js";
import { createTheme } from "./theme.js";
import { hashToView, viewToHash } from "./view.js";

const FIRST = 3; // Runs that are ticked until somebody ticks.
const PAUSE = 250; // Milliseconds in which changes are gathered.
const PATIENCE = 2000; // Milliseconds that a round of questions holds up the next one.

const narrow = matchMedia("(max-width: 900px)");
const theme = createTheme(() => render());

const app = {
  data: createData((runs) => changed(runs)),
  view: hashToView(location.hash),
  runs: [],
  ticked: [], // {id, slot, style, run}: `run` is null if it is not there any more.
  directory: "",
  problems: [], // Sentences about what of the directory could not be read.
  loaded: false,
  live: "wait",
  changes: 0, // How often the ticked runs have changed.
  round: 0, // How often something was drawn: who waits for data looks whether it is still wanted.
  theme: theme.theme(),
  ink: theme.ink(),
  now: () => clock.server + (app.data.exported ? 0 : (performance.now() - clock.here) / 1000),
  set,
  present: () => app.ticked.filter((tick) => tick.run),
  details,
  link: () => (write("replaceState"), location.href),
  say: (text) => top.say(text),
  help: () => help.showModal(),
};
const clock = { server: 0, here: 0 };
let [gathered, working] = [new Set(), false]; // Runs that have changed; null: maybe all.
let unwritten = 0; // A timer, if the address does not say yet what is seen.
let again = 0; // A timer, if the runs could not be read.

const problem = el("div", { class: "problem-bar" });
const panelBox = el("div", { class: "panels", id: "panels", role: "tabpanel" });
const main = el("main", {});
app.scroller = panelBox;
const panels = [createCurves, createOverview, createSamples, createConfig, createMemory, createGoodput, createLog].map(
  (create) => create(app),
);
const list = createRunList(app);
list.node.id = "list";
const top = createTop(app, theme);
const tabs = createTabs(app, panels);
const help = createHelp();
main.append(list.node, createBorder(main), el("section", { class: "right", "aria-label": "Panels" }, panelBox));
document.body.prepend(top.node, problem, tabs.node, main, help);
main.querySelector(".right").prepend(tabs.node);
let shownPanel = null;

/** Changes the view. Typing and sliding replace the address, when they pause; all else is a step that "back" takes back. */
function set(patch, { replace = false } = {}) {
  if (!replace && unwritten) write("replaceState");
  app.view = { ...app.view, ...patch };
  if (!replace) write("pushState");
  else unwritten ||= setTimeout(() => write("replaceState"), PAUSE);
  render();
}

function write(how) {
  clearTimeout(unwritten);
  unwritten = 0;
  const hash = `#${viewToHash(app.view)}`;
  if (hash !== (location.hash || "#")) history[how](null, "", hash);
}

/** Returns {tick, detail} or {tick, error} of each ticked run. */
function details() {
  return Promise.all(
    app.present().map(async (tick) => {
      try {
        return { tick, detail: await app.data.get("/api/run", { run: tick.id }) };
      } catch (error) {
        return { tick, error };
      }
    }),
  );
}

/** Draws what the view says. Returns when all data is there. */
async function render() {
  app.round += 1;
  [app.theme, app.ink] = [theme.theme(), theme.ink()];
  const known = new Map(app.runs.map((run) => [run.id, run]));
  app.ticked = (app.view.runs ?? []).flatMap((id, slot) =>
    id ? [{ id, slot, style: runStyle(slot, app.theme), run: known.get(id) ?? null }] : [],
  );
  const id = app.view.tab === "runs" && !narrow.matches ? "curves" : app.view.tab;
  document.body.classList.toggle("wide-list", app.view.wide);
  document.body.classList.toggle("tab-runs", id === "runs");
  top.update();
  tabs.update(id);
  list.update();
  const panel = panels.find((each) => each.id === id) ?? null;
  if (panel !== shownPanel) {
    shownPanel?.leave?.();
    panelBox.replaceChildren(...(panel ? [panel.node] : []));
    panelBox.setAttribute("aria-labelledby", `tab-${id}`);
    panelBox.scrollTop = 0;
    shownPanel = panel;
  }
  const missing = app.ticked.filter((tick) => !tick.run).map((tick) => tick.id);
  if (app.loaded && missing.length) top.say(`Not in the directory any more: ${missing.join(", ")}.`);
  await panel?.update();
}

async function loadRuns() {
  try {
    const found = await app.data.get("/api/runs");
    [clock.server, clock.here] = [found.now, performance.now()];
    Object.assign(app, {
      runs: found.runs,
      directory: String(found.directory ?? ""),
      problems: found.problems ?? [],
      loaded: true,
    });
    document.title = `${app.directory.split("/").filter(Boolean).at(-1) ?? "runs"} · Dovetail board`;
    problem.replaceChildren();
    if (app.view.runs === null && app.runs.length) choose();
  } catch (error) {
    problem.replaceChildren(errorBox(error, "The runs could not be read."));
    clearTimeout(again);
    again = setTimeout(() => changed(null), PATIENCE);
  }
}

/** Ticks the newest runs that have something to show. */
function choose() {
  const newest = [...app.runs].sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
  const some = newest.filter((run) => run.state !== "empty").slice(0, FIRST);
  app.view = { ...app.view, runs: some.map((run) => run.id) };
  write("replaceState");
}

/** Takes in which runs have changed (null: maybe all). One round of questions ends before the next begins. */
function changed(runs) {
  if (runs === null || gathered === null) gathered = null;
  else for (const run of runs) gathered.add(run);
  if (!working) setTimeout(refresh, PAUSE);
  working = true;
}

async function refresh() {
  const runs = gathered === null ? null : [...gathered];
  gathered = new Set();
  app.data.forget(runs);
  if (runs === null || app.ticked.some((tick) => runs.includes(tick.id))) app.changes += 1;
  try {
    await loadRuns();
    await Promise.race([render(), new Promise((resolve) => setTimeout(resolve, PATIENCE))]);
  } finally {
    working = false;
    if (gathered === null || gathered.size) changed([]);
  }
}

function onKey(event) {
  const typing = event.target.closest?.("input:not([type=checkbox]):not([type=range]), select, textarea");
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const panel = panels[Number(event.key) - 1];
  const actions = {
    "/": () => (narrow.matches && set({ tab: "runs" }), list.focusFilter()),
    "?": () => help.showModal(),
    f: () => shownPanel?.focusFilter?.(),
    r: () => (narrow.matches && set({ tab: "runs" }), list.focus()),
    t: () => theme.next(),
    w: () => set({ wide: !app.view.wide }),
    0: () => set({ zoom: null }),
  };
  if (event.defaultPrevented || (!panel && !Object.hasOwn(actions, event.key))) return;
  event.preventDefault();
  if (panel) set({ tab: panel.id });
  else actions[event.key]();
}

addEventListener("keydown", onKey);
addEventListener("popstate", () => {
  clearTimeout(unwritten);
  unwritten = 0;
  app.view = hashToView(location.hash);
  if (app.view.runs === null && app.runs.length) choose();
  render();
});
narrow.addEventListener("change", () => render());
setInterval(
  () => !document.hidden && !app.data.exported && (list.update(), shownPanel?.id === "overview" && shownPanel.update()),
  5000,
);
setText(document.querySelector("noscript"), "");
await loadRuns();
render();
app.data.follow(changed, (state) => {
  app.live = state;
  top.update();
});
