// SPDX-License-Identifier: Apache-2.0
// The frame of the page: the bar at the top, tabs, the border between list and panels, the help for keys.
import { button, el, setText } from "./dom.js";
import { kept } from "./theme.js";

const WIDTH_KEY = "dovetail-board-list";
const LIVE = {
  live: ["live", "Changes of runs show by themselves"],
  off: ["not connected", "The server does not answer; this page tries again every two seconds"],
  wait: ["connecting", ""],
  export: ["export", "This file holds its data: it changes no more"],
};
const KEYS_OF_PAGE = [
  ["/", "filter runs"],
  ["f", "filter what the panel shows"],
  ["r", "to the list; there: ↑ ↓ move, Space ticks, Enter (or Ctrl and click) shows this run alone"],
  ["1 to 7", "panels"],
  ["w", "list in full width, and back"],
  ["0", "all of the x axis"],
  ["← →  + −", "in a chart: move the cursor, zoom; Shift for larger steps"],
  ["t", "light, dark, as the system"],
  ["Esc", "leave a field, close this"],
  ["?", "these keys"],
];

/** Returns the bar at the top: {node, update}. */
export function createTop(app, theme) {
  const directory = el("span", { class: "directory" });
  const dot = el("span", { class: "live", role: "status" });
  const said = el("span", { class: "said", role: "status" });
  const copy = button("Copy link", () => copyLink(app), { title: "An address that holds all of this view" });
  const out = el("a", {
    class: "button",
    text: "Export",
    title: "The ticked runs as one HTML file, which needs no server",
  });
  const help = button("?", () => app.help(), { class: "help-button", title: "Keys (?)", "aria-label": "Keys" });
  let timer = 0;
  return {
    node: el(
      "header",
      { class: "top" },
      el("strong", { class: "mark", text: "Dovetail" }),
      directory,
      dot,
      el("span", { class: "spring" }),
      said,
      copy,
      out,
      theme.node,
      help,
    ),
    update() {
      setText(directory, app.directory);
      directory.title = app.directory;
      const [word, note] = LIVE[app.live];
      setText(dot, word);
      dot.dataset.live = app.live;
      dot.title = note;
      const runs = app.present().map((tick) => `run=${encodeURIComponent(tick.id)}`);
      out.hidden = app.data.exported;
      copy.hidden = app.data.exported;
      if (runs.length) {
        out.href = `export?${runs.join("&")}`;
        out.setAttribute("download", "");
        out.removeAttribute("aria-disabled");
      } else {
        out.removeAttribute("href");
        out.setAttribute("aria-disabled", "true");
      }
    },
    say(text) {
      setText(said, text);
      clearTimeout(timer);
      timer = setTimeout(() => setText(said, ""), 6000);
    },
  };
}

async function copyLink(app) {
  try {
    await navigator.clipboard.writeText(app.link());
    app.say("Link copied.");
  } catch {
    app.say("This browser does not let a page copy: take the link from the address bar.");
  }
}

/** Returns tabs: {node, update}. The first one, the list, is one only where there is no room for it beside the others. */
export function createTabs(app, panels) {
  const tabs = [["runs", "Runs"], ...panels.map((panel) => [panel.id, panel.title])].map(([id, title]) =>
    el("button", {
      type: "button",
      role: "tab",
      id: `tab-${id}`,
      value: id,
      text: title,
      class: id === "runs" ? "only-narrow" : "",
      "aria-controls": id === "runs" ? "list" : "panels",
      on: { click: () => app.set({ tab: id }) },
    }),
  );
  const node = el("div", { class: "tabs", role: "tablist", "aria-label": "Panels" }, tabs);
  node.addEventListener("keydown", (event) => {
    const shown = tabs.filter((tab) => tab.offsetParent !== null);
    const at = shown.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const tab = shown[(to + shown.length) % shown.length];
    tab.focus();
    app.set({ tab: tab.value });
  });
  return {
    node,
    update(id) {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", String(tab.value === id));
        tab.tabIndex = tab.value === id ? 0 : -1;
        if (tab.value === id && node.scrollWidth > node.clientWidth) node.scrollLeft = tab.offsetLeft - 40;
      }
    },
  };
}

/** Returns the border between list and panels, which is drawn, or moved by arrow keys. */
export function createBorder(main) {
  const node = el("div", {
    class: "border",
    role: "separator",
    tabIndex: 0,
    "aria-orientation": "vertical",
    "aria-label": "Width of the list",
    "aria-valuemin": "15",
    "aria-valuemax": "80",
  });
  const set = (share) => {
    const fitting = Math.min(80, Math.max(15, share));
    main.style.setProperty("--list", `${fitting}%`);
    node.setAttribute("aria-valuenow", String(Math.round(fitting)));
    kept(WIDTH_KEY, String(fitting));
  };
  const reset = () => {
    main.style.removeProperty("--list");
    node.setAttribute("aria-valuenow", "50"); // About: the style says how much.
    kept(WIDTH_KEY, "");
  };
  const now = () => (100 * node.previousElementSibling.offsetWidth) / main.clientWidth;
  if (Number(kept(WIDTH_KEY)) > 0) set(Number(kept(WIDTH_KEY)));
  else reset();
  node.addEventListener("pointerdown", (event) => {
    node.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  node.addEventListener(
    "pointermove",
    (event) => node.hasPointerCapture(event.pointerId) && set((100 * event.clientX) / main.clientWidth),
  );
  node.addEventListener("dblclick", reset);
  node.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
    if (by) set(now() + by);
  });
  return node;
}

/** Returns the help for keys, a dialog. */
export function createHelp() {
  const rows = KEYS_OF_PAGE.map(([key, text]) =>
    el("tr", {}, el("th", { scope: "row" }, el("kbd", { text: key })), el("td", { text })),
  );
  const close = button("Close", () => node.close());
  const node = el(
    "dialog",
    { class: "help", "aria-label": "Keys" },
    el("h2", { text: "Keys" }),
    el("table", {}, el("tbody", {}, rows)),
    close,
  );
  node.addEventListener("click", (event) => event.target === node && node.close());
  return node;
}
