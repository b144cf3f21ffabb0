// SPDX-License-Identifier: Apache-2.0
// One chart: the curves of one metric of all ticked runs. uPlot draws lines; bands and marks are drawn here.
/* global uPlot */
import { button, el, setText, swatch } from "./dom.js";
import { formatNumber, formatSeconds, formatTick, formatTimeTick } from "./format.js";
import { faint } from "./palette.js";
import { aligned, logSplits, nearest, padded, readable, smoothed, yRange } from "./series.js";
import { toggled } from "./view.js";

const HEIGHT = 200;
const SYNC = "board";
const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
  432000, 864000, 2592000,
];

/** Returns a chart: {node, name, show, update, remove}. It asks for data and draws only while it is in sight. */
export function createChart(app, name, tip) {
  const title = el("h3", { text: name, title: name });
  const badge = el("span", { class: "badge", hidden: true });
  const log = button("log", () => app.set({ logY: toggled(app.view.logY, name) }), {
    title: "Logarithmic y axis",
    "aria-pressed": "false",
  });
  const big = button("", () => app.set({ big: app.view.big === name ? "" : name }));
  const plot = el("div", {
    class: "plot",
    tabIndex: 0,
    role: "img",
    on: { keydown: (event) => onKey(event), mouseleave: () => tip.hide() },
  });
  const legend = el("div", { class: "legend" });
  const note = el("p", { class: "chart-note", role: "status", hidden: true });
  const node = el(
    "article",
    { class: "chart", "aria-label": name },
    el("header", {}, title, badge, el("span", { class: "spring" }), log, big),
    plot,
    note,
    legend,
  );
  let [chart, curves, shape, wanted, inSight, round, hovered] = [null, [], "", "", false, 0, false];
  plot.addEventListener("mouseenter", () => (hovered = true));
  plot.addEventListener("mouseleave", () => (hovered = false));
  const resized = new ResizeObserver(
    () => chart && plot.clientWidth > 0 && chart.setSize({ width: plot.clientWidth, height: height() }),
  );
  resized.observe(plot);

  const height = () => (app.view.big === name ? Math.max(HEIGHT, Math.min(560, innerHeight - 320)) : HEIGHT);
  const logY = () => app.view.logY.includes(name);

  async function update() {
    log.setAttribute("aria-pressed", String(logY()));
    setText(big, app.view.big === name ? "Close" : "Enlarge");
    node.classList.toggle("big", app.view.big === name);
    if (!inSight) return;
    const { x, zoom, logX, smooth, clip } = app.view;
    const key = JSON.stringify([
      app.ticked.map((run) => [run.id, run.slot]),
      x,
      zoom,
      logX,
      logY(),
      smooth,
      clip,
      app.theme,
      app.changes,
      app.view.big === name,
    ]);
    if (key === wanted) return;
    wanted = key;
    const mine = ++round;
    const runs = app.ticked.filter((run) => run.run).map((run) => run.id);
    if (!runs.length) return draw([]);
    plot.setAttribute("aria-busy", "true");
    try {
      const found = await app.data.curves(runs, name, x, zoom);
      if (mine === round) draw(found);
    } catch (error) {
      if (mine !== round) return;
      wanted = "";
      say(error.message);
    } finally {
      if (mine === round) plot.removeAttribute("aria-busy");
    }
  }

  function say(text) {
    setText(note, text);
    note.hidden = !text;
  }

  function draw(found) {
    const options = { logX: app.view.logX, logY: logY() };
    curves = found
      .map((each) => ({ ...readable(each, options), tick: app.ticked.find((tick) => tick.id === each.run) }))
      .filter((each) => each.tick && (each.x.length || each.bad.length))
      .sort((a, b) => a.tick.slot - b.tick.slot);
    const weight = app.view.smooth;
    for (const curve of curves) curve.smooth = smoothed(curve.x, curve.y, weight);
    showBadge();
    const hidden = curves.reduce((sum, each) => sum + each.hidden, 0);
    say(
      curves.length
        ? hidden
          ? `${hidden} values of 0 or less are not on a logarithmic axis.`
          : ""
        : "No values in this range.",
    );
    plot.hidden = !curves.length;
    if (!curves.length) return clear();
    const both = weight > 0;
    const data = aligned(curves.flatMap((each) => (both ? [each, { x: each.x, y: each.smooth }] : [each])));
    const next = JSON.stringify([curves.map((each) => each.tick.slot), both, options, app.theme, app.view.x]);
    if (!chart || next !== shape) {
      clear();
      chart = new uPlot(settings(both, options), data, plot);
      shape = next;
    } else chart.setData(data);
    if (chart.height !== height()) chart.setSize({ width: plot.clientWidth, height: height() });
    showLegend();
    plot.setAttribute("aria-label", spoken());
  }

  function clear() {
    chart?.destroy();
    chart = null;
    shape = "";
    if (!curves.length) legend.replaceChildren();
  }

  function settings(both, { logX, logY: logarithmic }) {
    const series = curves.flatMap((each) => {
      const { color, dash } = each.tick.style;
      const line = {
        stroke: color,
        dash,
        width: 1.5,
        spanGaps: true,
        points: { show: each.x.length <= 12, size: 4, fill: color, stroke: color },
      };
      return both
        ? [{ ...line, stroke: faint(color, 0.25), width: 1, dash: [], points: { show: false } }, line]
        : [line];
    });
    const axis = {
      stroke: app.ink.quiet,
      grid: { stroke: app.ink.grid, width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const time = app.view.x === "time";
    const timeText = (value, u) =>
      logX ? `${formatTick(value)} s` : formatTimeTick(value, u.scales.x.max - u.scales.x.min);
    const xText = time ? timeText : formatTick;
    const splits = (log) =>
      log ? { splits: (u, _, low, high) => logSplits(low, high), filter: (u, values) => values } : {};
    const labels = (format, scale, room) => (u, values) => {
      let last = Infinity;
      return values.map((value) => {
        const at = u.valToPos(value ?? 0, scale);
        if (value === null || Math.abs(at - last) < room) return "";
        last = at;
        return format(value, u);
      });
    };
    return {
      width: Math.max(plot.clientWidth, 120),
      height: height(),
      padding: [10, 16, 0, 0],
      legend: { show: false },
      series: [{}, ...series],
      scales: {
        x: { time: false, distr: logX ? 3 : 1, range: (_, low, high) => xRange(low, high) },
        y: { distr: logarithmic ? 3 : 1, range: () => yLimits(logarithmic) },
      },
      axes: [
        {
          ...axis,
          ...splits(logX),
          space: 50,
          size: 26,
          values: labels(xText, "x", 40),
          ...(time ? { incrs: TIME_STEPS } : {}),
        },
        { ...axis, ...splits(logarithmic), space: 34, size: 52, gap: 4, values: labels(formatTick, "y", 14) },
      ],
      cursor: {
        y: false,
        sync: { key: SYNC, scales: ["x", null] },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => (app.set({ zoom: null }), null) },
        points: { size: 6, width: 0, fill: (u, index) => u.series[index].stroke(u, index) },
        dataIdx: (u, index, closest) => closestValue(u.data[0], u.data[index], closest, u),
      },
      hooks: { drawAxes: [drawBands], draw: [drawMarks], setSelect: [onSelect], setCursor: [() => showLegend()] },
    };
  }

  function xRange(low, high) {
    if (app.view.zoom) return app.view.zoom;
    if (low === null) return [0, 1];
    if (low === high) return app.view.logX ? [low / 2, high * 2] : [low - 1, high + 1];
    return [low, high];
  }

  function yLimits(logarithmic) {
    const clip = app.view.clip;
    const lists = curves.flatMap((each) => (clip || !each.low ? [each.y] : [each.y, each.low, each.high]));
    return padded(yRange(lists, { clip }), logarithmic);
  }

  function drawBands(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const { x, low, high, tick } of curves) {
      if (!low || !high || x.length < 2) continue;
      ctx.beginPath();
      x.forEach((value, i) => ctx.lineTo(u.valToPos(value, "x", true), u.valToPos(high[i], "y", true)));
      for (let i = x.length - 1; i >= 0; i--) ctx.lineTo(u.valToPos(x[i], "x", true), u.valToPos(low[i], "y", true));
      ctx.fillStyle = faint(tick.style.color, 0.16);
      ctx.fill();
    }
    ctx.restore();
  }

  function drawMarks(u) {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio || 1;
    const inside = (x) => x >= u.scales.x.min && x <= u.scales.x.max;
    ctx.save();
    for (const { restarts, bad, tick } of curves) {
      ctx.strokeStyle = tick.style.color;
      ctx.lineWidth = ratio;
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      for (const value of restarts.filter(inside)) {
        const at = Math.round(u.valToPos(value, "x", true)) + 0.5;
        ctx.beginPath();
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.setLineDash([]);
      ctx.lineWidth = 2 * ratio;
      const [top, arm] = [bbox.top + 6 * ratio, 4 * ratio];
      for (const value of bad.filter(inside)) {
        const at = u.valToPos(value, "x", true);
        ctx.beginPath();
        ctx.moveTo(at - arm, top - arm);
        ctx.lineTo(at + arm, top + arm);
        ctx.moveTo(at + arm, top - arm);
        ctx.lineTo(at - arm, top + arm);
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  function onSelect(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    const zoom = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    app.set({ zoom: zoom.map((value) => Number(value.toPrecision(8))) });
  }

  function showBadge() {
    const bad = curves.reduce((sum, each) => sum + each.bad.length, 0);
    badge.hidden = !bad;
    setText(badge, bad === 1 ? "1 not finite" : `${bad} not finite`);
    badge.title = curves
      .filter((each) => each.bad.length)
      .map((each) => `${each.run}: at ${each.bad.slice(0, 8).map(xWord).join(", ")}`)
      .join("\n");
  }

  function xWord(value) {
    return app.view.x === "time"
      ? formatSeconds(value)
      : app.view.x === "step"
        ? `step ${formatNumber(value)}`
        : formatNumber(value);
  }

  function values() {
    const left = chart?.cursor.left ?? -1;
    const at = left >= 0 ? chart.posToVal(left, "x") : null;
    return curves.map((each) => {
      const index = at === null ? each.x.length - 1 : nearest(each.x, at);
      return {
        curve: each,
        x: each.x[index],
        y: each.smooth[index],
        low: each.low?.[index],
        high: each.high?.[index],
        at,
      };
    });
  }

  function showLegend() {
    const found = values();
    const key = curves.map((each) => each.tick.slot).join() + app.theme;
    if (legend.dataset.key !== key) {
      legend.dataset.key = key;
      legend.replaceChildren(
        ...curves.map((each) => el("span", { class: "entry", title: each.run }, swatch(each.tick.style), el("span"))),
      );
    }
    found.forEach(({ y }, index) => setText(legend.children[index].lastChild, formatNumber(y)));
    if (!hovered || !found.length || found[0].at === null) return;
    const near = (x) => Math.abs(chart.valToPos(x, "x") - chart.cursor.left) < 5;
    const notes = curves.flatMap((each) => [
      ...each.restarts.filter(near).map((x) => `${each.run} went on after a restart at ${xWord(x)}`),
      ...each.bad.filter(near).map((x) => `${each.run} is not finite at ${xWord(x)}`),
    ]);
    const rows = found.map(({ curve, y, low, high }) => [
      curve.tick,
      formatNumber(y),
      typeof low === "number" && low !== high ? `${formatNumber(low)} to ${formatNumber(high)}` : "",
    ]);
    tip.show(chart.over, chart.cursor.left, xWord(found[0].x), rows, notes);
  }

  function spoken() {
    const last = curves.map((each) => `${each.run} ${formatNumber(each.smooth.at(-1))} at ${xWord(each.x.at(-1))}`);
    return `${name}: ${last.join("; ")}. Arrow keys move the cursor, plus and minus zoom, 0 resets.`;
  }

  function onKey(event) {
    if (!chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const width = chart.over.clientWidth;
    const at = chart.cursor.left >= 0 ? chart.cursor.left : width / 2;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const by = event.key === "+" || event.key === "=" ? 0.5 : event.key === "-" ? 2 : 0;
    if (move) {
      hovered = true;
      chart.setCursor({ left: Math.min(width, Math.max(0, at + move * (event.shiftKey ? 40 : 6))), top: 10 });
    } else if (by) {
      const ends = [at - at * by, at + (width - at) * by].map((value) =>
        Number(chart.posToVal(value, "x").toPrecision(8)),
      );
      app.set({ zoom: ends[0] < ends[1] ? ends : null });
    } else if (event.key === "0") app.set({ zoom: null });
    else return;
    event.preventDefault();
  }
  plot.addEventListener("blur", () => ((hovered = false), tip.hide()));

  return {
    node,
    name,
    update,
    show(yes) {
      inSight = yes;
      if (yes) update();
    },
    remove() {
      resized.disconnect();
      round += 1;
      clear();
      node.remove();
    },
  };
}

/** Returns the index of the value nearest to where the cursor is, as runs have their points at different places. */
function closestValue(x, y, closest, u) {
  if (closest === null || y[closest] !== null) return closest;
  let [left, right] = [closest, closest];
  while (left >= 0 && y[left] === null) left -= 1;
  while (right < x.length && y[right] === null) right += 1;
  const at = u.posToVal(u.cursor.left, "x");
  if (left < 0) return right < x.length ? right : null;
  if (right >= x.length) return left;
  return at - x[left] <= x[right] - at ? left : right;
}
