// SPDX-License-Identifier: Apache-2.0
// A histogram at a step, above all of them over steps: the darker, the more values.
import { formatTick } from "./format.js";
import { faint } from "./palette.js";

const BARS = 110; // Height in px of the histogram, and below of all of them.
const OVER = 90;
const GAP = 22;

/** Draws the histograms of a list on a canvas, with one of them as bars. A click on a step picks it. */
export function drawHistograms(canvas, list, one, { color, ink, pick }) {
  const good = list.filter(
    (each) =>
      Array.isArray(each.edges) &&
      Array.isArray(each.counts) &&
      each.edges.length === each.counts.length + 1 &&
      each.edges.every(Number.isFinite),
  );
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth || 300, BARS + GAP + OVER + GAP];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  if (!good.length || !good.includes(one)) return;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "11px system-ui, sans-serif";
  bars(context, one, width, color, ink);
  context.translate(0, BARS + GAP);
  overSteps(context, good, one, width, color, ink);
  canvas.onclick = (event) => {
    if (event.offsetY < BARS + GAP) return;
    const index = Math.min(good.length - 1, Math.floor((event.offsetX / width) * good.length));
    pick(good[index].step);
  };
}

function bars(context, { edges, counts }, width, color, ink) {
  const [low, high] = [edges[0], edges.at(-1)];
  const most = Math.max(...counts, 1e-30);
  const at = (value) => ((value - low) / (high - low || 1)) * width;
  context.fillStyle = faint(color, 0.75);
  counts.forEach((count, i) => {
    const size = (count / most) * (BARS - 4);
    context.fillRect(at(edges[i]), BARS - size, Math.max(1, at(edges[i + 1]) - at(edges[i]) - 1), size);
  });
  context.fillStyle = ink.grid;
  context.fillRect(0, BARS, width, 1);
  context.fillStyle = ink.quiet;
  const middle = (low + high) / 2;
  for (const [value, align] of [
    [low, "left"],
    [middle, "center"],
    [high, "right"],
  ]) {
    context.textAlign = align;
    context.fillText(formatTick(Number(value.toPrecision(3))), at(value), BARS + 14);
  }
}

/** Draws a column for each step, and a row for each part of the values, which are the same for all steps. */
function overSteps(context, list, one, width, color, ink) {
  const low = Math.min(...list.map((each) => each.edges[0]));
  const high = Math.max(...list.map((each) => each.edges.at(-1)));
  const wide = width / list.length;
  const at = (value) => OVER - ((value - low) / (high - low || 1)) * OVER;
  list.forEach(({ edges, counts }, index) => {
    const densities = counts.map((count, i) => count / (edges[i + 1] - edges[i] || 1));
    const most = Math.max(...densities, 1e-30);
    densities.forEach((density, i) => {
      if (density <= 0) return;
      context.fillStyle = faint(color, 0.06 + 0.9 * Math.sqrt(density / most));
      context.fillRect(
        index * wide,
        at(edges[i + 1]),
        Math.max(wide - (wide > 4 ? 1 : 0), 1),
        Math.max(at(edges[i]) - at(edges[i + 1]), 1),
      );
    });
  });
  const chosen = list.indexOf(one);
  context.strokeStyle = ink.text;
  context.strokeRect(chosen * wide + 0.5, 0.5, Math.max(wide - 1, 2), OVER - 1);
  context.fillStyle = ink.quiet;
  context.textAlign = "left";
  context.fillText(`step ${formatTick(list[0].step)}`, 0, OVER + 14);
  context.textAlign = "right";
  if (list.length > 1) context.fillText(formatTick(list.at(-1).step), width, OVER + 14);
}
