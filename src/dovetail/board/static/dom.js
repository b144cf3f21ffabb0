// SPDX-License-Identifier: Apache-2.0
// Elements. Text from runs only ever becomes text: nothing here, or elsewhere, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Returns a new element. `class`, `text`, `on: {event: handler}` and properties of the element are set as such, the rest
 * (`role`, `aria-*`, ...) as attributes. Children are elements or text; null is left out.
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Returns a new SVG element. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Sets text only if it is another one: a selection, and screen readers, are left alone. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Returns text that may be broken after dots and slashes, as paths are. */
export function breakable(text) {
  return text.split(/(?<=[./])/).flatMap((part, index) => (index && index < 40 ? [el("wbr"), part] : [part]));
}

/** Returns a short line in the colour and the dash of a run. */
export function swatch({ color, dash }) {
  const line = svg("line", { x1: 0, y1: 4, x2: 16, y2: 4, stroke: color, "stroke-width": 2.5 });
  if (dash.length) line.setAttribute("stroke-dasharray", dash.map((each) => each * 0.7).join(" "));
  return svg("svg", { class: "swatch", width: 16, height: 8, viewBox: "0 0 16 8", "aria-hidden": "true" }, line);
}

/** Returns a button. */
export function button(text, handler, props = {}) {
  return el("button", { type: "button", text, on: { click: handler }, ...props });
}

/** Returns {node, set}: buttons of which one is chosen. `options` are [value, text, note?]. */
export function choice(label, options, handler) {
  const buttons = options.map(([value, text, note]) =>
    button(text, () => handler(value), { title: note ?? "", "aria-pressed": "false", value }),
  );
  return {
    node: el("span", { class: "choice", role: "group", "aria-label": label }, buttons),
    set: (value) => buttons.forEach((each) => each.setAttribute("aria-pressed", String(each.value === value))),
  };
}

/** Returns {node, set}: a checkbox with its text. */
export function checkbox(text, handler, note = "") {
  const box = el("input", { type: "checkbox", on: { change: () => handler(box.checked) } });
  return { node: el("label", { class: "check", title: note }, box, text), set: (value) => (box.checked = value) };
}

/** Returns {node, set, input}: a field to filter by, which calls back with what is typed. */
export function searchField(label, placeholder, handler) {
  const input = el("input", {
    type: "search",
    class: "search",
    placeholder,
    "aria-label": label,
    spellcheck: false,
    autocomplete: "off",
    on: { input: () => handler(input.value) },
  });
  return { node: input, input, set: (value) => document.activeElement !== input && (input.value = value) };
}

/** Returns {node, set}: a list to choose one from. */
export function selection(label, handler) {
  const node = el("select", { "aria-label": label, on: { change: () => handler(node.value) } });
  let shown = "";
  return {
    node,
    set(options, value) {
      const key = JSON.stringify(options);
      if (key !== shown) node.replaceChildren(...options.map(([each, text]) => el("option", { value: each, text })));
      shown = key;
      node.value = value;
    },
  };
}

/** Returns what is shown instead of nothing: what is missing, and what to do. */
export function emptyState(title, ...lines) {
  return el(
    "div",
    { class: "empty" },
    el("p", { class: "empty-title", text: title }),
    lines.filter(Boolean).map((line) => el("p", {}, line)),
  );
}

/** Returns an error as a box: where, and what to do. */
export function errorBox(error, what) {
  return el("div", { class: "error-box", role: "alert" }, el("strong", { text: what }), ` ${error.message}`);
}

/** Calls a function at most once in each frame. */
export function eachFrame(handler) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => ((waits = false), handler()));
  };
}
