// SPDX-License-Identifier: Apache-2.0
// A config, given as [path, value] lines, as a tree; and the differences of several. Pure functions.

/** Returns the parts of a path: model.layers[3].ffn -> model, layers, [3], ffn. */
export function pathParts(path) {
  return path.match(/\[[^\]]*\]|[^.[\]]+/g) ?? [path];
}

/** Returns the lines as a tree of {name, path, value, children}; `value` is null where a line names only what is below. */
export function configTree(lines) {
  const root = { name: "", path: "", value: null, children: new Map() };
  for (const [path, value] of lines) {
    let node = root;
    if (path === "(root)") {
      root.value = value;
      continue;
    }
    for (const part of pathParts(path)) {
      if (!node.children.has(part)) {
        const joined = part.startsWith("[") || !node.path ? node.path + part : `${node.path}.${part}`;
        node.children.set(part, { name: part, path: joined, value: null, children: new Map() });
      }
      node = node.children.get(part);
    }
    node.value = value;
  }
  return root;
}

/** Returns the lines whose path or value has all words of a filter. */
export function filterLines(lines, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length
    ? lines.filter((line) => words.every((word) => `${line[0]} ${line[1]}`.toLowerCase().includes(word)))
    : lines;
}

/** Returns {paths: [{path, values: [one for each config, or null]}], same: how many paths are equal in all}. */
export function configDifferences(configs) {
  const maps = configs.map((lines) => new Map(lines));
  const paths = [];
  const seen = new Set();
  let same = 0;
  for (const lines of configs) {
    for (const [path] of lines) {
      if (seen.has(path)) continue;
      seen.add(path);
      const values = maps.map((map) => map.get(path) ?? null);
      if (values.every((value) => value === values[0])) same += 1;
      else paths.push({ path, values });
    }
  }
  const order = new Intl.Collator("en", { numeric: true });
  return { paths: paths.sort((a, b) => order.compare(a.path, b.path)), same };
}
