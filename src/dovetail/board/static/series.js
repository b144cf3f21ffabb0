// SPDX-License-Identifier: Apache-2.0
// Curves as arrays: smoothing, one x axis for several runs, finding values. Pure functions.

/**
 * Returns y smoothed by an exponential mean whose first values are not drawn to zero.
 *
 * `weight` (0 to 0.99) is kept from one point to the next where points lie at their mean distance; over a longer one
 * less is kept, so that the look of a curve does not depend on where it has more points. What is no number is passed over.
 */
export function smoothed(x, y, weight) {
  if (weight <= 0 || y.length < 3) return y;
  const mean = (x.at(-1) - x[0]) / (x.length - 1) || 1;
  let [sum, total, last] = [0, 0, x[0]];
  return y.map((value, index) => {
    if (value === null || !Number.isFinite(value)) return null;
    const kept = weight ** Math.max((x[index] - last) / mean, 0.001);
    last = x[index];
    sum = kept * sum + (1 - kept) * value;
    total = kept * total + (1 - kept);
    return sum / total;
  });
}

/** Returns [all x in order without repeats, one array of y for each curve with null where it has no point]. */
export function aligned(curves) {
  if (curves.length === 1) return [curves[0].x, curves[0].y];
  const all = Float64Array.from(curves.flatMap((curve) => curve.x)).sort();
  const x = Array.from(all).filter((value, index) => index === 0 || value !== all[index - 1]);
  const at = new Map(x.map((value, index) => [value, index]));
  const rows = curves.map((curve) => {
    const row = new Array(x.length).fill(null);
    curve.x.forEach((value, index) => (row[at.get(value)] = curve.y[index]));
    return row;
  });
  return [x, ...rows];
}

/** Returns the index of the value nearest to `target` in an ascending array, or -1 if it is empty. */
export function nearest(x, target) {
  let [low, high] = [0, x.length - 1];
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= target) low = middle;
    else high = middle;
  }
  return Math.abs(x[high] - target) < Math.abs(x[low] - target) ? high : low;
}

/** Returns the last value at or before `target` of a list in ascending order of `key`, or the first of all. */
export function atOrBefore(list, target, key = (each) => each.step) {
  let found = list[0];
  for (const each of list) if (key(each) <= target) found = each;
  return found;
}

/** Returns the curve with numbers for the words of the server, and only points that an axis can show. */
export function readable(curve, { logX, logY }) {
  const keep = curve.x.map((x, index) => {
    const y = curve.y[index];
    return typeof x === "number" && typeof y === "number" && !(logX && x <= 0) && !(logY && y <= 0);
  });
  const kept = (list) => (list ? list.filter((_, index) => keep[index]) : null);
  const positive = (list) => (logX ? list.filter((x) => x > 0) : list);
  const y = kept(curve.y);
  const low = curve.low ? kept(curve.low).map((value, i) => bounded(value, y[i], logY)) : null;
  const high = curve.high ? kept(curve.high).map((value, i) => bounded(value, y[i], logY)) : null;
  const hidden = logY ? curve.y.filter((value) => typeof value === "number" && value <= 0).length : 0;
  return {
    ...curve,
    x: kept(curve.x),
    y,
    low,
    high,
    bad: positive(curve.bad ?? []),
    restarts: positive(curve.restarts ?? []),
    hidden,
  };
}

function bounded(value, otherwise, logY) {
  return typeof value === "number" && !(logY && value <= 0) ? value : otherwise;
}

/** Returns [low, high] of the y axis: of lines and bands, or of the inner 96 % of what is drawn. */
export function yRange(lists, { clip = false } = {}) {
  const values = lists.flat().filter((value) => value !== null && Number.isFinite(value));
  if (!values.length) return [0, 1];
  if (clip && values.length > 20) {
    values.sort((a, b) => a - b);
    const cut = Math.floor(values.length * 0.02);
    return [values[cut], values[values.length - 1 - cut]];
  }
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

/** Returns [low, high] with a little air, never empty; on a log axis by factors. */
export function padded([low, high], log) {
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  const air = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.06;
  return [low - air, high + air];
}

/** Returns where a logarithmic axis has its lines: at round numbers, few or many decades apart. */
export function logSplits(low, high) {
  if (!(low > 0) || !(high > low)) return [];
  if (high / low < 6) {
    const rough = (high - low) / 4;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((each) => each * unit >= rough) * unit;
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) =>
      Number(((first + i) * step).toPrecision(12)),
    );
  }
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((to - from) / 8));
  const within = high / low <= 1e3 ? [1, 2, 5] : [1];
  const found = [];
  for (let decade = from; decade <= to; decade += every)
    for (const each of within) found.push(Number(`${each}e${decade}`));
  return found.filter((value) => value >= low && value <= high);
}

/** Returns names of metrics by their group, which is what they have before "/": first those without, then by name. */
export function grouped(names) {
  const groups = new Map();
  const first = (name) => (name === "loss" ? 0 : name.startsWith("loss") ? 1 : 2);
  const order = new Intl.Collator("en", { numeric: true });
  for (const name of [...names].sort((a, b) => first(a) - first(b) || order.compare(a, b))) {
    const cut = name.indexOf("/");
    const group = cut > 0 ? name.slice(0, cut) : "";
    groups.set(group, [...(groups.get(group) ?? []), name]);
  }
  return [...groups].sort(([a], [b]) => (a !== "") - (b !== "") || order.compare(a, b));
}
