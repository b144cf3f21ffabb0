// SPDX-License-Identifier: Apache-2.0
// The panel of goodput: what each second of a run went to, with failures and recoveries, over one axis of time for all runs.
import { eachFrame, el, emptyState, errorBox, setText, swatch } from "./dom.js";
import { formatSeconds, formatShare } from "./format.js";
import { KIND_COLORS, kindColor } from "./palette.js";

const HEIGHT_OF_LINE = 34;
const MARKS = 14; // Room above it, for events.

/** Returns the panel. */
export function createGoodput(app) {
  const node = el("div", { class: "panel" });
  const resized = new ResizeObserver(eachFrame(() => lines.forEach((each) => each.draw())));
  let [drawn, lines] = ["", []];

  async function update() {
    const round = app.round;
    const found = await Promise.all(
      app.present().map(async (tick) => {
        try {
          return { tick, goodput: await app.data.get("/api/goodput", { run: tick.id }) };
        } catch (error) {
          return { tick, error };
        }
      }),
    );
    if (round !== app.round) return;
    const key = JSON.stringify([
      found.map(({ tick, goodput, error }) => [tick.id, tick.slot, goodput, error?.message]),
      app.theme,
    ]);
    if (key === drawn) return;
    drawn = key;
    resized.disconnect();
    lines = [];
    if (!found.length)
      return node.replaceChildren(emptyState("No run is ticked.", "Tick runs to see what their time went to."));
    const longest = Math.max(1, ...found.flatMap(({ goodput }) => (goodput?.spans ?? []).map((span) => span.end)));
    node.replaceChildren(legend(found), ...found.map((each) => part(each, longest)));
  }

  function legend(found) {
    const totals = found
      .flatMap(({ goodput }) => Object.entries(goodput?.kinds ?? {}))
      .filter(([, seconds]) => seconds > 0);
    const kinds = Object.keys(KIND_COLORS.light).filter((kind) => totals.some(([each]) => each === kind));
    return el(
      "p",
      { class: "kinds" },
      kinds.map((kind) => el("span", { class: "kind" }, block(kind), kind.replaceAll("_", " "))),
      el(
        "span",
        { class: "kind" },
        el("span", { class: "event-mark", "aria-hidden": "true", text: "▼" }),
        "failure, recovery",
      ),
    );
  }

  function block(kind) {
    const found = el("span", { class: "block", "aria-hidden": "true" });
    found.style.background = kindColor(kind, app.theme);
    return found;
  }

  function part({ tick, goodput, error }, longest) {
    const title = el("h2", {}, swatch(tick.style), ` ${tick.id}`);
    if (error) return el("section", {}, title, errorBox(error, "Not loaded:"));
    const total = Object.values(goodput.kinds ?? {}).reduce((sum, each) => sum + each, 0);
    if (!total)
      return el(
        "section",
        {},
        title,
        el("p", { class: "quiet", text: "It has no ledger of its time (goodput.jsonl) yet." }),
      );
    title.append(
      el("span", {
        class: "quiet",
        text: `  goodput ${formatShare((goodput.kinds.step ?? 0) / total)} of ${formatSeconds(total)}`,
      }),
    );
    const shares = Object.entries(goodput.kinds)
      .filter(([, seconds]) => seconds > 0)
      .sort(([, a], [, b]) => b - a);
    const rows = shares.map(([kind, seconds]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, block(kind), ` ${kind.replaceAll("_", " ")}`),
        el("td", { class: "number", text: formatShare(seconds / total) }),
        el("td", { class: "number", text: formatSeconds(seconds) }),
      ),
    );
    const line = timeline(goodput, longest, tick);
    const events = (goodput.events ?? []).map((event) =>
      el(
        "tr",
        {},
        el("td", { class: "number", text: formatSeconds(event.time) }),
        el("th", { scope: "row", text: String(event.kind) }),
        el("td", { text: String(event.text ?? "") }),
      ),
    );
    const side = events.length
      ? el("div", { class: "scroll", tabIndex: 0 }, el("table", { class: "facts events" }, el("tbody", {}, events)))
      : null;
    return el(
      "section",
      {},
      title,
      line,
      el("div", { class: "side-by-side" }, el("table", { class: "facts" }, el("tbody", {}, rows)), side),
    );
  }

  function timeline(goodput, longest, tick) {
    const canvas = el("canvas", {
      class: "timeline",
      role: "img",
      "aria-label": `What the time of ${tick.id} went to; the table below says it in numbers`,
    });
    const at = el("p", { class: "quiet at", text: " " });
    const draw = () => drawTimeline(canvas, goodput, longest, app);
    lines.push({ draw });
    resized.observe(canvas);
    canvas.addEventListener("mousemove", (event) => {
      const time = (event.offsetX / canvas.clientWidth) * longest;
      const span = goodput.spans.findLast((each) => each.start <= time && time <= each.end);
      const near = (goodput.events ?? []).filter(
        (each) => Math.abs(each.time - time) < (longest / canvas.clientWidth) * 6,
      );
      const words = [
        formatSeconds(time),
        span ? `${span.kind.replaceAll("_", " ")}, ${formatSeconds(span.end - span.start)}` : "",
        ...near.map((each) => `${each.kind}: ${each.text ?? ""}`),
      ];
      setText(at, words.filter(Boolean).join("  ·  "));
    });
    canvas.addEventListener("mouseleave", () => setText(at, " "));
    return el("div", {}, canvas, at);
  }

  return { id: "goodput", title: "Goodput", node, update };
}

/** Draws spans as a line of colours: of many within a pixel, the longest counts. Events are marks above it. */
function drawTimeline(canvas, { spans, events }, longest, app) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth || 300, MARKS + HEIGHT_OF_LINE + 18];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const best = new Array(Math.ceil(width)).fill(null);
  const size = longest / width;
  for (const { kind, start, end } of spans) {
    for (let pixel = Math.floor(start / size); pixel <= Math.min(best.length - 1, Math.floor(end / size)); pixel++) {
      const covered = Math.min(end, (pixel + 1) * size) - Math.max(start, pixel * size);
      if (covered > 0 && covered > (best[pixel]?.covered ?? 0)) best[pixel] = { kind, covered };
    }
  }
  best.forEach((each, pixel) => {
    if (!each) return;
    context.fillStyle = kindColor(each.kind, app.theme);
    context.fillRect(pixel, MARKS, 1, HEIGHT_OF_LINE);
  });
  for (const event of events ?? []) {
    const x = Math.min(width - 5, Math.max(5, event.time / size));
    const bad = /fail|lost|hang|hung|crash|kill|error|died|preempt/.test(`${event.kind}`.toLowerCase());
    context.fillStyle = bad ? app.ink.bad : app.ink.text;
    context.beginPath();
    context.moveTo(x - 5, 1);
    context.lineTo(x + 5, 1);
    context.lineTo(x, MARKS - 3);
    context.fill();
    context.fillRect(Math.round(x), MARKS - 3, 1, HEIGHT_OF_LINE + 3);
  }
  context.fillStyle = app.ink.quiet;
  context.font = "11px system-ui, sans-serif";
  const parts = Math.max(2, Math.min(6, Math.floor(width / 110)));
  for (let i = 0; i <= parts; i++) {
    context.textAlign = i === 0 ? "left" : i === parts ? "right" : "center";
    context.fillText(formatSeconds((longest * i) / parts), (width * i) / parts, height - 4);
  }
}
