// SPDX-License-Identifier: Apache-2.0
// The view: all that a link holds. Pure functions between it and the hash of the address.

const X_AXES = ["step", "units", "time"];
export const LEVELS = ["info", "warning", "error"];
const TABS = ["runs", "curves", "overview", "samples", "config", "memory", "goodput", "log"];

/** The view of an address without a hash. `runs` is null until somebody ticks: then the page chooses. */
export const DEFAULT_VIEW = Object.freeze({
  runs: null, // Ids by colour; "" is a colour that is free.
  tab: "curves",
  filter: "", // Of runs.
  sort: "-updated",
  columns: null, // Keys, or null: the usual ones.
  wide: false, // The list has all the room.
  x: "step",
  zoom: null, // [from, to] on the x axis.
  logX: false,
  logY: [], // Names of metrics.
  smooth: 0, // 0 to 0.99.
  clip: false, // The y axis leaves outliers out.
  metrics: "", // Filter of metrics.
  closed: [], // Groups of metrics that are folded.
  big: "", // The metric whose chart has all the room.
  step: null, // Of samples; null is the newest.
  sample: "", // Filter of samples.
  config: "", // Filter of the config.
  same: false, // The config with what is equal, too.
  log: "", // Filter of the log.
  level: "info",
  of: "", // The run whose log or whose config is shown.
  file: "", // Its log, of several.
  on: "", // The hardware for which memory and speed are predicted.
});

const KEYS = {
  runs: "run",
  tab: "tab",
  filter: "filter",
  sort: "sort",
  columns: "column",
  wide: "wide",
  x: "x",
  zoom: "zoom",
  logX: "logx",
  logY: "logy",
  smooth: "smooth",
  clip: "clip",
  metrics: "metric",
  closed: "closed",
  big: "big",
  step: "step",
  sample: "sample",
  config: "config",
  same: "same",
  log: "log",
  level: "level",
  of: "of",
  file: "file",
  on: "on",
};

/** Returns the hash of a view, without "#": what is as usual is left out. */
export function viewToHash(view) {
  const found = new URLSearchParams();
  for (const [name, key] of Object.entries(KEYS)) {
    const value = view[name];
    if (JSON.stringify(value) === JSON.stringify(DEFAULT_VIEW[name])) continue;
    if (name === "zoom") found.set(key, value.join("~"));
    else if (Array.isArray(value)) for (const each of value.length ? value : [""]) found.append(key, each);
    else found.set(key, value === true ? "1" : String(value));
  }
  return found.toString();
}

/** Returns the view of a hash. What makes no sense is as usual. */
export function hashToView(hash) {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  const view = { ...DEFAULT_VIEW };
  const text = (name) => found.get(KEYS[name]) ?? DEFAULT_VIEW[name];
  const oneOf = (name, values) => (values.includes(text(name)) ? text(name) : DEFAULT_VIEW[name]);
  const list = (name) => (found.has(KEYS[name]) ? found.getAll(KEYS[name]) : DEFAULT_VIEW[name]);
  for (const name of ["filter", "sort", "metrics", "big", "sample", "config", "log", "of", "file", "on"])
    view[name] = text(name);
  for (const name of ["wide", "logX", "same", "clip"]) view[name] = text(name) === "1";
  view.tab = oneOf("tab", TABS);
  view.x = oneOf("x", X_AXES);
  view.level = oneOf("level", LEVELS);
  view.runs = list("runs") === null ? null : trimTicks(list("runs"));
  view.columns = list("columns") === null ? null : list("columns").filter(Boolean);
  view.logY = list("logY").filter(Boolean);
  view.closed = [...list("closed")];
  const zoom = text("zoom")?.split("~").map(Number);
  view.zoom = zoom?.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1] ? zoom : null;
  const smooth = Number(text("smooth"));
  view.smooth = smooth >= 0 && smooth <= 0.99 ? smooth : 0;
  const step = Number(found.get(KEYS.step) ?? NaN);
  view.step = Number.isFinite(step) ? step : null;
  return view;
}

/**
 * Returns the ticks with a run ticked, or not any more.
 *
 * A run keeps its colour as long as it is ticked; a new one has the first that is free.
 */
export function toggleTick(ticks, run) {
  const at = ticks.indexOf(run);
  if (at >= 0) return trimTicks(ticks.with(at, ""));
  const free = ticks.indexOf("");
  return free >= 0 ? ticks.with(free, run) : [...ticks, run];
}

/** Returns the ticks without what is free at their end, and each run once. */
function trimTicks(ticks) {
  const found = ticks.map((run, index) => (ticks.indexOf(run) === index ? run : ""));
  while (found.length && found.at(-1) === "") found.pop();
  return found;
}

/** Returns a list with a value in it, or without it. */
export function toggled(list, value) {
  return list.includes(value) ? list.filter((each) => each !== value) : [...list, value];
}
