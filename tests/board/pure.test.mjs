// SPDX-License-Identifier: Apache-2.0
// Claims about the parts of the page that need no browser. tests/board/test_static.py runs them with node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { columnKeys, filterRuns, share, sortRuns } from "../../src/dovetail/board/static/columns.js";
import { addressOf, canonicalAddress, runsOf } from "../../src/dovetail/board/static/data.js";
import * as format from "../../src/dovetail/board/static/format.js";
import { partTree } from "../../src/dovetail/board/static/memory.js";
import { RUN_COLORS, runStyle } from "../../src/dovetail/board/static/palette.js";
import * as series from "../../src/dovetail/board/static/series.js";
import { configDifferences, configTree, filterLines, pathParts } from "../../src/dovetail/board/static/tree.js";
import * as views from "../../src/dovetail/board/static/view.js";

const HOSTILE = `<img src=x onerror="document.title='harm'">&amp;#%2F\u202e\u0000é🐋,;=+ ~`;

test("numbers keep four digits that count, and say what they are", () => {
  const cases = [
    [0, "0"],
    [3.21449, "3.214"],
    [0.021, "0.02100"],
    [12345, "12,345"],
    [6415.3, "6,415"],
    [1234567, "1.235 M"],
    [-2.5e12, "-2.500 T"],
    [1.2e-5, "1.20e-5"],
    [999.97, "1,000"],
    [99999.7, "100.0 k"],
    ["nan", "NaN"],
    ["inf", "∞"],
    ["-inf", "−∞"],
    [NaN, "NaN"],
    [null, "–"],
    [undefined, "–"],
    [1e300, "1.00e+300"],
  ];
  for (const [value, text] of cases) assert.equal(format.formatNumber(value), text, String(value));
});

test("times, sizes and shares have the unit that suits them", () => {
  assert.deepEqual([0, 0.0123, 12.34, 754, 93600, 864000, null].map(format.formatSeconds), [
    "0 s",
    "12.3 ms",
    "12.3 s",
    "12.6 min",
    "26.0 h",
    "10.0 d",
    "–",
  ]);
  assert.deepEqual([0, 1023, 1024, 5116416, 2 ** 40, -2048].map(format.formatBytes), [
    "0 B",
    "1023 B",
    "1.00 KiB",
    "4.88 MiB",
    "1.00 TiB",
    "−2.00 KiB",
  ]);
  assert.deepEqual([0, 59, 61, 7300, 200000].map(format.formatAgo), [
    "now",
    "55 s ago",
    "1 min ago",
    "2 h ago",
    "2 d ago",
  ]);
  assert.equal(format.formatNamed("peak_bytes", 1024), "1.00 KiB");
  assert.equal(format.formatNamed("step_seconds", [0.1, 0.2]), "100 ms to 200 ms");
  assert.equal(format.formatNamed("step_seconds_interval", [4e-5, 5.38e-5]), "40.0 µs to 53.8 µs");
  assert.equal(format.formatNamed("assumptions", ["a", "b"]), "a; b");
  assert.equal(format.formatNamed("assumptions", []), "–");
  assert.equal(format.formatNamed("mfu", 0.385), "38.5 %");
  assert.equal(format.formatShare("nan"), "–");
  assert.deepEqual(
    [
      [0, 50],
      [20, 50],
      [120, 600],
      [5400, 20000],
      [2e6, 1e7],
    ].map(([value, span]) => format.formatTimeTick(value, span)),
    ["0", "20 s", "2 min", "1.5 h", "23.15 d"],
  );
  assert.deepEqual([0, 100, 2000, 250000, 1e-9, 0.05].map(format.formatTick), [
    "0",
    "100",
    "2000",
    "250k",
    "1e-9",
    "0.05",
  ]);
});

test("a link holds the whole view, whatever it says", () => {
  const all = {
    runs: ["a/b", "", HOSTILE],
    tab: "log",
    filter: HOSTILE,
    sort: "-last:eval/x",
    columns: ["loss", HOSTILE],
    wide: true,
    x: "time",
    zoom: [-1.5, 2e9],
    logX: true,
    logY: ["loss", HOSTILE],
    smooth: 0.75,
    clip: true,
    metrics: "a b",
    closed: ["", "eval"],
    big: HOSTILE,
    step: 0,
    sample: "s",
    config: "c",
    same: true,
    log: HOSTILE,
    level: "error",
    of: "a/b",
    file: "launch/1.log",
    on: "tpu-v5p-8",
  };
  assert.deepEqual(Object.keys(all).sort(), Object.keys(views.DEFAULT_VIEW).sort());
  assert.deepEqual(views.hashToView(`#${views.viewToHash(all)}`), all);
  for (const name of Object.keys(all)) {
    const one = { ...views.DEFAULT_VIEW, [name]: all[name] };
    assert.deepEqual(views.hashToView(views.viewToHash(one)), one, name);
  }
  assert.equal(views.viewToHash(views.DEFAULT_VIEW), "");
  assert.deepEqual(views.hashToView(""), views.DEFAULT_VIEW);
});

test("a view with nothing ticked, no columns or no folded group is not the usual one", () => {
  for (const patch of [{ runs: [] }, { columns: [] }]) {
    const view = { ...views.DEFAULT_VIEW, ...patch };
    assert.deepEqual(views.hashToView(views.viewToHash(view)), view);
  }
});

test("a link that makes no sense is as usual", () => {
  const view = views.hashToView("#tab=nowhere&x=mass&zoom=3~1&smooth=7&step=soon&level=loud&run=a&run=a&__proto__=1");
  assert.deepEqual(view, { ...views.DEFAULT_VIEW, runs: ["a"] });
  assert.equal(views.hashToView("#smooth=NaN&zoom=1~").smooth, 0);
});

test("a run keeps its colour while it is ticked, and a new one has the first that is free", () => {
  let ticks = ["a", "b", "c"].reduce(views.toggleTick, []);
  ticks = views.toggleTick(ticks, "b");
  assert.deepEqual(ticks, ["a", "", "c"]);
  assert.deepEqual(views.toggleTick(ticks, "d"), ["a", "d", "c"]);
  assert.deepEqual(views.toggleTick(views.toggleTick(ticks, "c"), "a"), []);
  const styles = Array.from({ length: 32 }, (_, slot) => JSON.stringify(runStyle(slot, "dark")));
  assert.equal(new Set(styles).size, 32);
});

// How people see who lack a kind of cone (Machado, Oliveira and Fernandes 2009, full strength), in linear RGB.
const SIGHTS = {
  all: [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  protanopia: [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  deuteranopia: [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  tritanopia: [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
};
const linear = (color) =>
  [1, 3, 5]
    .map((at) => parseInt(color.slice(at, at + 2), 16) / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
const dot = (row, rgb) => row.reduce((sum, each, i) => sum + each * rgb[i], 0);

function lab(rgb) {
  const clipped = rgb.map((each) => Math.min(1, Math.max(0, each)));
  const xyz = [
    dot([0.4124, 0.3576, 0.1805], clipped) / 0.95047,
    dot([0.2126, 0.7152, 0.0722], clipped),
    dot([0.0193, 0.1192, 0.9505], clipped) / 1.08883,
  ];
  const [x, y, z] = xyz.map((t) => (t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

for (const [theme, ground] of [
  ["light", "#ffffff"],
  ["dark", "#141517"],
]) {
  test(`colours of runs on a ${theme} ground are told apart by people who see few, and from the ground`, () => {
    const luminance = (color) => dot([0.2126, 0.7152, 0.0722], linear(color)) + 0.05;
    for (const color of RUN_COLORS[theme]) {
      const [high, low] = [luminance(color), luminance(ground)].sort((a, b) => b - a);
      assert.ok(high / low >= 3, `${color}: contrast ${high / low}`); // WCAG 2.2, 1.4.11.
    }
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      const seen = RUN_COLORS[theme].map((color) => lab(matrix.map((row) => dot(row, linear(color)))));
      seen.forEach((a, i) =>
        seen.slice(0, i).forEach((b, j) => {
          const distance = Math.hypot(...a.map((each, k) => each - b[k]));
          assert.ok(
            distance >= 20,
            `${sight}: ${RUN_COLORS[theme][j]} and ${RUN_COLORS[theme][i]} are ${distance} apart`,
          );
        }),
      );
    }
  });
}

test("text has enough contrast on every ground, light and dark", () => {
  const style = readFileSync(new URL("../../src/dovetail/board/static/base.css", import.meta.url), "utf8");
  const colors = Object.fromEntries(
    [...style.matchAll(/--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)/g)].map(([, name, ...both]) => [name, both]),
  );
  const luminance = (color) => dot([0.2126, 0.7152, 0.0722], linear(color)) + 0.05;
  for (const text of ["text", "quiet", "accent", "good", "bad", "warn"]) {
    for (const ground of ["ground", "raised", "hover", "chosen"]) {
      colors[text].forEach((color, theme) => {
        const [high, low] = [luminance(color), luminance(colors[ground][theme])].sort((a, b) => b - a);
        assert.ok(high / low >= 4.5, `${text} on ${ground}, ${theme ? "dark" : "light"}: ${high / low}`); // WCAG 2.2, 1.4.3.
      });
    }
  }
});

test("smoothing keeps a constant, starts at the first value, and is a mean of what it has seen", () => {
  const x = Array.from({ length: 50 }, (_, i) => i);
  for (const value of series.smoothed(
    x,
    x.map(() => 7),
    0.9,
  ))
    assert.ok(Math.abs(value - 7) < 1e-12);
  const y = x.map((i) => Math.sin(i));
  const found = series.smoothed(x, y, 0.8);
  assert.ok(Math.abs(found[0] - y[0]) < 1e-9);
  found.forEach((value, i) => {
    // By the definition: weights 0.2 * 0.8^age, of all values so far, normalised.
    const weights = y.slice(0, i + 1).map((_, j) => (j === 0 ? (1 - 0.8 ** 0.001) * 0.8 ** i : 0.2 * 0.8 ** (i - j)));
    const want = weights.reduce((sum, w, j) => sum + w * y[j], 0) / weights.reduce((a, b) => a + b);
    assert.ok(Math.abs(value - want) < 1e-9, `${i}: ${value} ${want}`);
  });
  assert.deepEqual(series.smoothed(x, y, 0), y);
  assert.equal(series.smoothed([0, 1, 2], [1, null, 3], 0.5)[1], null);
});

test("curves of several runs share an x axis and lose no point", () => {
  const [x, a, b] = series.aligned([
    { x: [1, 2, 4], y: [10, 20, 40] },
    { x: [2, 3], y: [5, 6] },
  ]);
  assert.deepEqual(
    [x, a, b],
    [
      [1, 2, 3, 4],
      [10, 20, null, 40],
      [null, 5, 6, null],
    ],
  );
});

test("the nearest value is found as by looking at all", () => {
  const x = [0, 1, 1.5, 4, 10];
  for (let target = -2; target < 12; target += 0.13) {
    const found = series.nearest(x, target);
    const best = Math.min(...x.map((each) => Math.abs(each - target)));
    assert.ok(Math.abs(Math.abs(x[found] - target) - best) < 1e-12);
  }
  assert.equal(series.nearest([], 3), -1);
});

test("a curve for logarithmic axes has only what they can show", () => {
  const curve = { x: [0, 1, 2], y: [5, -1, 3], low: [4, -2, 0], high: [6, 0, 4], bad: [0, 3], restarts: [0], count: 3 };
  const found = series.readable(curve, { logX: true, logY: true });
  assert.deepEqual(
    [found.x, found.y, found.low, found.high, found.bad, found.restarts, found.hidden],
    [[2], [3], [3], [4], [3], [], 1],
  );
  assert.deepEqual(series.readable(curve, {}).x, [0, 1, 2]);
});

test("axes are never empty, and have lines at round numbers", () => {
  assert.deepEqual(series.padded([3, 3], false), [2.7, 3.3]);
  assert.deepEqual(series.padded([0, 0], false), [-1, 1]);
  const [low, high] = series.padded([1, 100], true);
  assert.ok(low > 0 && low < 1 && high > 100);
  assert.deepEqual(
    series.yRange([
      [1, 2, null],
      [NaN, 7],
    ]),
    [1, 7],
  );
  assert.deepEqual(series.yRange([]), [0, 1]);
  const many = Array.from({ length: 100 }, (_, i) => (i === 50 ? 1e9 : i));
  assert.ok(series.yRange([many], { clip: true })[1] < 100);
  assert.deepEqual(series.logSplits(0.9, 250), [1, 2, 5, 10, 20, 50, 100, 200]);
  assert.deepEqual(series.logSplits(2.05, 8), [4, 6, 8]);
  assert.ok(series.logSplits(1e-30, 1e30).length < 12);
  assert.deepEqual(series.logSplits(0, 3), []);
});

test("metrics are grouped by what is before the slash, the loss first", () => {
  const names = ["eval/b", "tokens", "loss", "eval/a10", "eval/a9", "/odd", "data/x"];
  assert.deepEqual(series.grouped(names), [
    ["", ["loss", "/odd", "tokens"]],
    ["data", ["data/x"]],
    ["eval", ["eval/a9", "eval/a10", "eval/b"]],
  ]);
});

test("runs sort by any column, what is not known last, either way", () => {
  const runs = [
    { id: "b", loss: 2, last: {} },
    { id: "a10", loss: null, last: {} },
    { id: "a9", loss: "nan", last: { "eval/x": 1 } },
    { id: "c", loss: 1, last: { "eval/x": 3 } },
  ];
  const ids = (sort) =>
    sortRuns(runs, sort)
      .map((run) => run.id)
      .join(" ");
  assert.equal(ids("loss"), "c b a9 a10");
  assert.equal(ids("-loss"), "b c a9 a10");
  assert.equal(ids("name"), "a9 a10 b c");
  assert.equal(ids("-last:eval/x"), "c a9 a10 b");
  assert.equal(ids("__proto__"), ids("updated"));
  assert.ok(columnKeys(runs).includes("last:eval/x"));
  assert.equal(share({ step: 50, steps: 200 }), 0.25);
  assert.equal(share({ step: null, steps: 200 }), null);
});

test("a filter of runs takes words, leaves words out, and asks a field", () => {
  const runs = [
    { id: "wide/1", recipe: "tiny-lm", state: "done" },
    { id: "wide/2", recipe: "big", state: "failed", error: "ValueError: done" },
    { id: "x", recipe: null, state: "lost" },
  ];
  const ids = (filter) =>
    filterRuns(runs, filter)
      .map((run) => run.id)
      .join(" ");
  assert.equal(ids(""), "wide/1 wide/2 x");
  assert.equal(ids("WIDE tiny"), "wide/1");
  assert.equal(ids("-tiny wide"), "wide/2");
  assert.equal(ids("done"), "wide/1 wide/2");
  assert.equal(ids("state:done"), "wide/1");
  assert.equal(ids("-state:done"), "wide/2 x");
  assert.equal(ids("["), "");
});

test("a config is a tree by its paths, and differences name each path once", () => {
  assert.deepEqual(pathParts("model.layers[3].ffn[a.b].dim"), ["model", "layers", "[3]", "ffn", "[a.b]", "dim"]);
  const lines = [
    ["(root)", "T"],
    ["model", "M"],
    ["model.layers[0].dim", "8"],
    ["__proto__.x", "1"],
  ];
  const root = configTree(lines);
  assert.equal(root.value, "T");
  assert.equal(
    root.children.get("model").children.get("layers").children.get("[0]").children.get("dim").path,
    "model.layers[0].dim",
  );
  assert.equal(root.children.get("__proto__").children.get("x").value, "1");
  const found = configDifferences([
    [
      ["a", "1"],
      ["b", "2"],
    ],
    [
      ["a", "1"],
      ["b", "3"],
      ["c", "4"],
    ],
  ]);
  assert.deepEqual(found, {
    paths: [
      { path: "b", values: ["2", "3"] },
      { path: "c", values: [null, "4"] },
    ],
    same: 1,
  });
  assert.deepEqual(filterLines(lines, "DIM 8"), [["model.layers[0].dim", "8"]]);
});

test("memory of a part is the sum of what is in it", () => {
  const root = partTree([
    { path: "model.a", parameters: 2, parameter_bytes: 8, optimizer_bytes: 16 },
    { path: "model.b[0]", parameters: 1, parameter_bytes: 4, optimizer_bytes: 8 },
  ]);
  assert.equal(root.parameters, 3);
  assert.equal(root.children.get("model").optimizerBytes, 24);
  assert.equal(root.children.get("model").children.get("b").children.get("[0]").path, "model.b[0]");
});

test("an address of the API is the same whoever writes it", () => {
  const address = addressOf("/api/curves", { points: null, name: "eval/x", run: ["a b", "c+d"], x: "step" });
  assert.equal(address, "/api/curves?run=a%20b&run=c%2Bd&name=eval%2Fx&x=step");
  for (const other of [
    "/api/curves?x=step&run=a%20b&run=c%2Bd&name=eval/x",
    "/api/curves?name=eval%2fx&run=%61%20b&run=c%2Bd&x=step",
  ])
    assert.equal(canonicalAddress(other), address);
  assert.deepEqual(runsOf(address), ["a b", "c+d"]);
  const hostile = addressOf("/api/run", { run: HOSTILE });
  assert.equal(canonicalAddress(hostile), hostile);
  assert.deepEqual(runsOf(hostile), [HOSTILE]);
  assert.equal(canonicalAddress("/api/runs"), "/api/runs");
});
