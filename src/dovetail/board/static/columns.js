// SPDX-License-Identifier: Apache-2.0
// Columns of the list of runs: what they show, how they sort, and which runs a filter leaves. Pure functions.
import {
  formatAgo,
  formatCount,
  formatMoment,
  formatNamed,
  formatNumber,
  formatSeconds,
  formatShare,
  NOTHING,
  toNumber,
} from "./format.js";

export const STATE_WORDS = {
  running: "running",
  done: "done",
  stopped: "stopped",
  failed: "failed",
  lost: "lost",
  empty: "empty",
};
export const STATE_NOTES = {
  running: "It trains, or is about to.",
  done: "It has made all its steps.",
  stopped: "It was asked to stop, has saved, and can go on.",
  failed: "It ended with an error.",
  lost: "It gives no sign of life, and has not said that it ended.",
  empty: "It has written no metrics yet.",
};
const ORDER = ["running", "failed", "lost", "stopped", "done", "empty"];
const COLLATOR = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** Returns what a run counts, as "tokens", or "". */
export function unitsOf(run) {
  return run.unit ? `${run.unit}${run.unit.endsWith("s") ? "" : "s"}` : "";
}

function rateText(run) {
  if (toNumber(run.rate) === null) return NOTHING;
  return `${formatNumber(run.rate)}${run.unit ? ` ${unitsOf(run)}` : ""}/s`;
}

/** key: {title, value (to sort by), text, width in px, note}; `text` gets the moment at which it is read. */
export const COLUMNS = {
  name: {
    title: "Run",
    value: (run) => run.id,
    text: (run) => run.id,
    width: 140,
    note: "Its path below the directory",
  },
  state: {
    title: "State",
    value: (run) => ORDER.indexOf(run.state),
    text: (run) => STATE_WORDS[run.state] ?? String(run.state),
    width: 84,
  },
  progress: { title: "Progress", value: share, text: progressText, width: 98, note: "Steps made, of all" },
  loss: {
    title: "Loss",
    value: (run) => toNumber(run.loss),
    text: (run) => formatNumber(run.loss),
    width: 64,
    number: true,
  },
  rate: { title: "Speed", value: (run) => toNumber(run.rate), text: rateText, width: 112, number: true },
  goodput: {
    title: "Goodput",
    value: (run) => toNumber(run.goodput),
    text: (run) => formatShare(run.goodput),
    width: 66,
    number: true,
    note: "Share of time spent on steps that count",
  },
  left: {
    title: "Left",
    value: (run) => toNumber(run.seconds_left),
    text: (run) => formatSeconds(run.seconds_left),
    width: 62,
    number: true,
    note: "Time left",
  },
  updated: {
    title: "Changed",
    value: (run) => run.updated ?? null,
    text: (run, now) => (run.updated ? formatAgo(now - run.updated) : NOTHING),
    width: 92,
    number: true,
  },
  recipe: { title: "Recipe", value: (run) => run.recipe, text: (run) => run.recipe ?? NOTHING, width: 130 },
  step: { title: "Step", value: (run) => run.step, text: (run) => formatCount(run.step), width: 84, number: true },
  steps: {
    title: "Steps",
    value: (run) => run.steps,
    text: (run) => formatCount(run.steps),
    width: 84,
    number: true,
    note: "That the config asks for",
  },
  mfu: {
    title: "MFU",
    value: (run) => toNumber(run.mfu),
    text: (run) => formatShare(run.mfu),
    width: 74,
    number: true,
    note: "Model FLOPs utilisation",
  },
  seconds: {
    title: "Took",
    value: (run) => toNumber(run.seconds),
    text: (run) => formatSeconds(run.seconds),
    width: 80,
    number: true,
    note: "From the first start to the last change",
  },
  started: {
    title: "Started",
    value: (run) => run.started ?? null,
    text: (run) => formatMoment(run.started),
    width: 150,
    number: true,
  },
  phase: { title: "Phase", value: (run) => run.phase, text: (run) => run.phase ?? NOTHING, width: 100 },
  error: { title: "Error", value: (run) => run.error, text: (run) => run.error ?? NOTHING, width: 240 },
};
export const USUAL_COLUMNS = ["state", "progress", "loss", "rate", "goodput", "left", "updated"];

/** Returns the column of a key: one of the above, or the last value of a metric ("last:eval/loss"), or null. */
export function columnOf(key) {
  if (Object.hasOwn(COLUMNS, key)) return COLUMNS[key];
  if (!key.startsWith("last:")) return null;
  const metric = key.slice(5);
  const value = (run) => (Object.hasOwn(run.last ?? {}, metric) ? run.last[metric] : null);
  return {
    title: metric,
    value: (run) => toNumber(value(run)),
    text: (run) => formatNamed(metric, value(run)),
    width: Math.min(160, Math.max(80, 26 + 7 * metric.length)),
    number: true,
    note: `Last value of ${metric}`,
  };
}

/** Returns all keys that a column can have: the fixed ones, and metrics that a run tells the last value of. */
export function columnKeys(runs) {
  const metrics = new Set(
    runs.flatMap((run) => Object.keys(run.last ?? {})).filter((name) => !Object.hasOwn(COLUMNS, name)),
  );
  return [
    ...Object.keys(COLUMNS).filter((key) => key !== "name"),
    ...[...metrics].sort(COLLATOR.compare).map((name) => `last:${name}`),
  ];
}

/** Returns the share of steps that are made, or null. */
export function share(run) {
  return typeof run.step === "number" && run.steps > 0 ? Math.min(1, run.step / run.steps) : null;
}

function progressText(run) {
  if (typeof run.step !== "number") return NOTHING;
  return run.steps > 0 ? `${formatCount(run.step)} / ${formatCount(run.steps)}` : formatCount(run.step);
}

/** Returns the runs in the order of a column; "-" before its key turns it round. What is not known is last either way. */
export function sortRuns(runs, sort) {
  const down = sort.startsWith("-");
  const column = columnOf(down ? sort.slice(1) : sort) ?? COLUMNS.updated;
  const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
  return runs
    .map((run) => [column.value(run), run])
    .sort(([a, one], [b, other]) => {
      if (known(a) !== known(b)) return known(a) ? -1 : 1;
      const order = !known(a)
        ? 0
        : typeof a === "number" && typeof b === "number"
          ? a - b
          : COLLATOR.compare(String(a), String(b));
      return (down ? -order : order) || COLLATOR.compare(one.id, other.id);
    })
    .map(([, run]) => run);
}

/**
 * Returns the runs that have all words of a filter in their name, recipe, state, phase or error.
 *
 * `-word` leaves out, `state:done` asks one field.
 */
export function filterRuns(runs, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return runs;
  return runs.filter((run) => {
    const fields = { name: run.id, recipe: run.recipe, state: run.state, phase: run.phase, error: run.error };
    const all = Object.values(fields)
      .map((value) => String(value ?? "").toLowerCase())
      .join("\n");
    return words.every((word) => {
      const not = word.startsWith("-") && word.length > 1;
      const asked = not ? word.slice(1) : word;
      const [, field, text] = asked.match(/^(name|recipe|state|phase|error):(.+)$/) ?? [];
      return (
        not !==
        (field
          ? String(fields[field] ?? "")
              .toLowerCase()
              .includes(text)
          : all.includes(asked))
      );
    });
  });
}
