// SPDX-License-Identifier: Apache-2.0
// Light or dark: what the system says, until one chooses. The choice stays in this browser; a link does not hold it.
import { button, el, setText } from "./dom.js";

const THEME_KEY = "dovetail-board-theme";
const NEXT_THEME = { system: "light", light: "dark", dark: "system" };

/** Reads or writes what this browser keeps; a browser that keeps nothing is no error. */
export function kept(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch {
    return null;
  }
  return value;
}

/** Returns {node, next, theme(), ink()}: `ink` has the colours that canvases need. */
export function createTheme(changed) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const probe = el("span", { class: "probe", "aria-hidden": "true" });
  document.body.append(probe);
  let chosen = kept(THEME_KEY);
  if (!Object.hasOwn(NEXT_THEME, chosen ?? "")) chosen = "system";
  const node = button("", () => next(), { title: "Light, dark, or as the system (t)" });
  const apply = () => {
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    setText(node, { system: "Auto", light: "Light", dark: "Dark" }[chosen]);
    node.setAttribute("aria-label", `Theme: ${chosen}`);
  };
  const next = () => {
    chosen = NEXT_THEME[chosen];
    kept(THEME_KEY, chosen);
    apply();
    changed();
  };
  apply();
  dark.addEventListener("change", () => chosen === "system" && changed());
  const colorOf = (name) => {
    probe.className = `probe ${name}`;
    return getComputedStyle(probe).color;
  };
  return {
    node,
    next,
    theme: () => (chosen === "system" ? (dark.matches ? "dark" : "light") : chosen),
    ink: () => Object.fromEntries(["text", "quiet", "grid", "bad"].map((name) => [name, colorOf(`ink-${name}`)])),
  };
}
