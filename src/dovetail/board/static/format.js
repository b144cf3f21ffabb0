// SPDX-License-Identifier: Apache-2.0
// Numbers, times and sizes as people read them. Pure functions.

export const NOTHING = "–";
const COUNT = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SUFFIXES = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const WORDS = { nan: "NaN", inf: "∞", "-inf": "−∞" };

/** Returns the number that the server wrote: it has words for those that JSON has none for. */
export function toNumber(value) {
  if (typeof value === "number") return value;
  if (value === "nan") return NaN;
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return null;
}

/** Four digits that count: 3.214, 0.02100, 12,345, 1.234 M, 1.20e-5. */
export function formatNumber(value) {
  const number = toNumber(value);
  if (number === null) return typeof value === "string" ? value : NOTHING;
  if (!Number.isFinite(number)) return Number.isNaN(number) ? WORDS.nan : number > 0 ? WORDS.inf : WORDS["-inf"];
  const size = Math.abs(number);
  if (size >= 1e18) return number.toExponential(2);
  if (size >= 99_999.5) {
    const [unit, suffix] = SUFFIXES.find(([unit]) => size >= unit * 0.99995);
    return `${(number / unit).toPrecision(4)} ${suffix}`;
  }
  if (Number.isInteger(number) || size >= 999.5) return COUNT.format(number);
  return size < 1e-3 ? number.toExponential(2) : number.toPrecision(4);
}

/** A number on an axis: as short as it can be said. */
export function formatTick(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e18 || size < 1e-4) return value.toExponential().replace("e+", "e");
  const [unit, suffix] = SUFFIXES.find(([unit]) => size >= unit * 10 || (size >= unit && unit > 1e3)) ?? [1, ""];
  return `${Number((value / unit).toPrecision(6))}${suffix}`;
}

const TIMES = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** A time on an axis that spans so many seconds: all of an axis have one unit. */
export function formatTimeTick(value, span) {
  const [unit, name] = TIMES.find(([unit]) => span >= 3 * unit) ?? TIMES.at(-1);
  return value === 0 ? "0" : `${Number((value / unit).toPrecision(4))} ${name}`;
}

export function formatCount(value) {
  return typeof value === "number" && Number.isFinite(value) ? COUNT.format(value) : NOTHING;
}

export function formatShare(value) {
  const number = toNumber(value);
  return number === null || !Number.isFinite(number) ? NOTHING : `${(100 * number).toFixed(1)} %`;
}

/** A length of time in the unit that suits it. */
export function formatSeconds(value) {
  const seconds = toNumber(value);
  if (seconds === null || !Number.isFinite(seconds)) return NOTHING;
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.0009995) return `${(seconds * 1e6).toPrecision(3)} µs`;
  if (size < 0.9995) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (size < 99.95) return `${seconds.toFixed(1)} s`;
  if (size < 99.95 * 60) return `${(seconds / 60).toFixed(1)} min`;
  if (size < 99.95 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}

/** How long ago, coarsely: it is read at a glance and must not flicker. */
export function formatAgo(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds / 5) * 5} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** A moment, in the reader's own time zone, as 2026-11-19 22:30:01. */
export function formatMoment(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NOTHING;
  const date = new Date(seconds * 1e3);
  if (Number.isNaN(date.getTime())) return NOTHING;
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function formatBytes(value) {
  const bytes = toNumber(value);
  if (bytes === null || !Number.isFinite(bytes)) return NOTHING;
  let [size, unit] = [Math.abs(bytes), 0];
  while (size >= 1023.5 && unit < BYTE_UNITS.length - 1) [size, unit] = [size / 1024, unit + 1];
  const digits = unit === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return `${bytes < 0 ? "−" : ""}${size.toFixed(digits)} ${BYTE_UNITS[unit]}`;
}

/** A value by what its name says that it is; a pair of numbers is an interval. */
export function formatNamed(name, value) {
  if (Array.isArray(value)) {
    const isInterval = value.length === 2 && value.every((each) => toNumber(each) !== null);
    const parts = value.map((each) => formatNamed(name.replace(/_interval$/, ""), each));
    return parts.join(isInterval ? " to " : "; ") || NOTHING;
  }
  if (value === null || value === undefined) return NOTHING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") return JSON.stringify(value);
  if (/(^|[/_.])bytes$/.test(name)) return formatBytes(value);
  if (/(^|[/_.])seconds$/.test(name)) return formatSeconds(value);
  if (/(^|[/_.])(share|mfu|goodput)$/.test(name)) return formatShare(value);
  return formatNumber(value);
}
