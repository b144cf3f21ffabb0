// SPDX-License-Identifier: Apache-2.0
// Colours of runs and of kinds of time. People who see few colours tell them apart, too: a test measures that.

/** Eight colours of runs, in the order in which they are given: on a light ground, and on a dark one. */
export const RUN_COLORS = {
  light: ["#004fb6", "#b72400", "#01a396", "#701e68", "#c38600", "#7c91c5", "#4e3b36", "#e43873"],
  dark: ["#2d7fe8", "#e5690e", "#51cb8a", "#c6abff", "#ffdc64", "#cff3ff", "#77706c", "#d97fb0"],
};
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

/** Kinds of goodput, in the order in which they are stacked. */
export const KIND_COLORS = {
  light: {
    step: "#0b8a6a",
    evaluation: "#3aa0d8",
    checkpoint: "#0a66c2",
    compile: "#8e3b8c",
    start: "#93a1b8",
    data_wait: "#a87900",
    lost_work: "#c2321d",
    restart: "#e58a5a",
    idle: "#dededf",
  },
  dark: {
    step: "#2fa983",
    evaluation: "#6cc0ee",
    checkpoint: "#4a90dd",
    compile: "#b579d6",
    start: "#64748b",
    data_wait: "#cfa93a",
    lost_work: "#e5533d",
    restart: "#c8743f",
    idle: "#3a3a41",
  },
};

/** Returns the colour and dash of the run with the n-th tick. After eight, colours come again with another dash. */
export function runStyle(slot, theme) {
  const colors = RUN_COLORS[theme];
  return { color: colors[slot % colors.length], dash: DASHES[Math.floor(slot / colors.length) % DASHES.length] };
}

export function kindColor(kind, theme) {
  return KIND_COLORS[theme][kind] ?? RUN_COLORS[theme][6];
}

/** Returns a colour with less strength, as #rrggbbaa. */
export function faint(color, alpha) {
  return (
    color +
    Math.round(alpha * 255)
      .toString(16)
      .padStart(2, "0")
  );
}
