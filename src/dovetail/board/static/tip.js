// SPDX-License-Identifier: Apache-2.0
// The box beside the cursor: which run has which value there.
import { el, swatch } from "./dom.js";

/** Returns {node, show, hide}: one for all charts. */
export function createTip() {
  const node = el("div", { class: "tip", hidden: true });
  return {
    node,
    hide: () => (node.hidden = true),
    /** Shows rows of [run, value, range] with a title beside `left` px of an element. */
    show(over, left, title, rows, notes = []) {
      const lines = rows.map(([tick, value, range]) =>
        el(
          "div",
          { class: "tip-row" },
          swatch(tick.style),
          el("span", { class: "tip-name", text: tick.id }),
          el("span", { class: "tip-value", text: value }),
          el("span", { class: "tip-range", text: range }),
        ),
      );
      node.replaceChildren(
        el("div", { class: "tip-title", text: title }),
        ...lines,
        ...notes.map((text) => el("div", { class: "tip-note", text })),
      );
      node.hidden = false;
      const box = over.getBoundingClientRect();
      const at = box.left + left;
      const beside = at + 16 + node.offsetWidth < innerWidth ? at + 16 : at - 16 - node.offsetWidth;
      node.style.left = `${Math.max(4, beside)}px`;
      node.style.top = `${Math.max(4, Math.min(box.top + 8, innerHeight - node.offsetHeight - 8))}px`;
    },
  };
}
