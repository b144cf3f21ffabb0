// SPDX-License-Identifier: Apache-2.0
// The panel of curves: one chart for each metric, in groups, with what holds for all of them above.
import { createChart } from "./chart.js";
import { unitsOf } from "./columns.js";
import { button, checkbox, choice, el, emptyState, errorBox, searchField, setText } from "./dom.js";
import { formatNumber, formatSeconds } from "./format.js";
import { grouped } from "./series.js";
import { createTip } from "./tip.js";
import { toggled } from "./view.js";

/** Returns the panel of curves. */
export function createCurves(app) {
  const tip = createTip();
  document.body.append(tip.node);
  const controls = createControls(app);
  const groups = el("div", { class: "groups" });
  const [empty, errors] = [el("div", {}), el("div", { class: "errors" })];
  const node = el("div", { class: "panel" }, controls.node, errors, groups, empty);
  const charts = new Map(); // Name -> chart.
  const sight = new IntersectionObserver(
    (entries) => entries.forEach((entry) => charts.get(entry.target.metric)?.show(entry.isIntersecting)),
    { root: app.scroller, rootMargin: "200px" },
  );
  let drawn = "";

  async function update() {
    controls.update();
    const round = app.round;
    const details = await app.details();
    if (round !== app.round) return;
    const names = [...new Set(details.flatMap(({ detail }) => detail?.metrics ?? []))];
    const failed = details.filter(({ error }) => error);
    const words = app.view.metrics.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = names.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    const only = names.includes(app.view.big) ? [app.view.big] : shown;
    const found = grouped(only);
    const key = JSON.stringify([found, app.view.closed]);
    if (key !== drawn) build(found);
    drawn = key;
    errors.replaceChildren(...failed.map(({ tick, error }) => errorBox(error, `${tick.id} could not be read.`)));
    empty.replaceChildren(...(only.length || failed.length ? [] : [nothing(names)]));
    for (const chart of charts.values()) chart.update();
  }

  function nothing(names) {
    if (!app.ticked.length)
      return emptyState("No run is ticked.", "Tick runs in the list: their curves are laid over each other here.");
    if (names.length)
      return emptyState(
        "No metric matches the filter.",
        button("Clear the filter", () => app.set({ metrics: "" })),
      );
    return emptyState("There are no metrics yet.", "They show up by themselves with the first line of metrics.jsonl.");
  }

  function build(found) {
    const wanted = new Set(found.flatMap(([group, names]) => (app.view.closed.includes(group) ? [] : names)));
    for (const [name, chart] of charts) {
      if (wanted.has(name)) continue;
      sight.unobserve(chart.node);
      chart.remove();
      charts.delete(name);
    }
    const sections = found.map(([group, names]) => {
      const closed = app.view.closed.includes(group);
      const fold = button("", () => app.set({ closed: toggled(app.view.closed, group) }), {
        class: "fold",
        "aria-expanded": String(!closed),
      });
      fold.append(
        el("span", { class: "chevron", "aria-hidden": "true" }),
        el("span", { text: group || "main" }),
        el("span", { class: "quiet", text: ` ${names.length}` }),
      );
      const inside = closed ? [] : names.map((name) => chartOf(name).node);
      return el(
        "section",
        { class: "group", "aria-label": group || "main" },
        el("h2", {}, fold),
        el("div", { class: "charts" }, inside),
      );
    });
    const focused = document.activeElement?.closest?.(".group")?.getAttribute("aria-label");
    const isFold = document.activeElement?.classList.contains("fold");
    groups.replaceChildren(...sections);
    if (isFold)
      [...groups.children]
        .find((each) => each.getAttribute("aria-label") === focused)
        ?.querySelector(".fold")
        .focus();
  }

  function chartOf(name) {
    if (!charts.has(name)) {
      const chart = createChart(app, name, tip);
      chart.node.metric = name;
      charts.set(name, chart);
      sight.observe(chart.node);
    }
    return charts.get(name);
  }

  return { id: "curves", title: "Curves", node, update, leave: () => tip.hide(), focusFilter: controls.focusFilter };
}

function createControls(app) {
  const axis = choice(
    "x axis",
    [
      ["step", "Step"],
      ["units", "Units", "What the input counts: tokens, rows"],
      ["time", "Time", "Since the first start"],
    ],
    (x) => app.set({ x, zoom: null }),
  );
  const unitsButton = [...axis.node.children].find((each) => each.value === "units");
  const logX = checkbox("log x", (on) => app.set({ logX: on, zoom: null }), "Logarithmic x axis");
  const clip = checkbox("no outliers", (on) => app.set({ clip: on }), "The y axis shows the inner 96 % of the values");
  const slider = el("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    id: "smooth",
    on: { input: () => app.set({ smooth: Number(slider.value) }, { replace: true }) },
  });
  const shown = el("output", { for: "smooth" });
  const filter = searchField("Filter metrics", "Filter metrics", (text) =>
    app.set({ metrics: text }, { replace: true }),
  );
  const reset = button("", () => app.set({ zoom: null }), {
    title: "All of the x axis (double click on a chart, or 0)",
  });
  const smooth = el(
    "label",
    { class: "slider", title: "Exponential mean; the raw line stays, faintly" },
    "Smooth",
    slider,
    shown,
  );
  return {
    node: el(
      "div",
      { class: "bar" },
      axis.node,
      logX.node,
      smooth,
      clip.node,
      reset,
      el("span", { class: "spring" }),
      filter.node,
    ),
    focusFilter: () => filter.input.focus(),
    update() {
      const { x, logX: log, smooth: weight, zoom, metrics, clip: clipped } = app.view;
      axis.set(x);
      const units = unitsOf(app.present()[0]?.run ?? {}) || "units";
      setText(unitsButton, units[0].toUpperCase() + units.slice(1));
      logX.set(log);
      clip.set(clipped);
      filter.set(metrics);
      if (document.activeElement !== slider) slider.value = weight;
      setText(shown, weight.toFixed(2));
      reset.hidden = !zoom;
      const word = x === "time" ? formatSeconds : formatNumber;
      if (zoom) setText(reset, `${word(zoom[0])} to ${word(zoom[1])}  ×`);
    },
  };
}
