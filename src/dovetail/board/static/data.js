// SPDX-License-Identifier: Apache-2.0
// What the server says, or what an export holds: the page asks for both in the same words, by addresses of its API.

const PARAMETERS = ["run", "name", "x", "from", "to", "points", "before", "file", "lines", "on"];
const KEPT = 600; // Answers.

/** Returns the address of a question, with its parameters in one order. Lists are repeated; null is left out. */
export function addressOf(path, params = {}) {
  const parts = Object.entries(params)
    .sort(([a], [b]) => PARAMETERS.indexOf(a) - PARAMETERS.indexOf(b))
    .flatMap(([name, value]) =>
      (Array.isArray(value) ? value : [value])
        .filter((each) => each !== null && each !== undefined)
        .map((each) => `${name}=${encodeURIComponent(each)}`),
    );
  return parts.length ? `${path}?${parts.join("&")}` : path;
}

/** Returns an address in the one way to write it, whatever way an export has. */
export function canonicalAddress(address) {
  const [path, query = ""] = address.split(/\?(.*)/s);
  const params = {};
  for (const [name, value] of new URLSearchParams(query.replaceAll("+", "%2B"))) (params[name] ??= []).push(value);
  return addressOf(path, params);
}

/** Returns the runs that an address is about. */
export function runsOf(address) {
  return new URLSearchParams(address.split(/\?(.*)/s)[1] ?? "").getAll("run");
}

/** An answer that is none: it says what was asked, and what to do. */
class BoardError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function asked(address) {
  let answer;
  try {
    answer = await fetch(address.replace(/^\//, ""), { headers: { accept: "application/json" }, cache: "no-store" });
  } catch {
    throw new BoardError("The server does not answer. Start `dovetail board` again; this page goes on by itself.", 0);
  }
  if (answer.status === 401) {
    throw new BoardError("This board asks for a token. Open the whole address that `dovetail board` has printed.", 401);
  }
  let found = null;
  try {
    found = await answer.json();
  } catch {
    throw new BoardError(
      `The answer to ${address.split("?")[0]} is not JSON. Is this another version of the server? Load the page anew.`,
      answer.status,
    );
  }
  if (!answer.ok)
    throw new BoardError(String(found?.error ?? `The server answers with status ${answer.status}.`), answer.status);
  return found;
}

function embedded() {
  const element = document.getElementById("data");
  if (!element) return null;
  const found = new Map();
  for (const [address, answer] of Object.entries(JSON.parse(element.textContent)))
    found.set(canonicalAddress(address), answer);
  return found;
}

/** Returns the source of all data. `outdated(runs)` is called when an answer has come that was overtaken by a change. */
export function createData(outdated) {
  const held = embedded();
  const answers = new Map();
  const get = (path, params) => {
    const address = addressOf(path, params);
    if (held) {
      if (held.has(address)) return Promise.resolve(held.get(address));
      return Promise.reject(new BoardError("This is not in the export.", 404));
    }
    if (!answers.has(address)) {
      const one = { answer: asked(address), waits: true, stale: false };
      const came = (good) => {
        one.waits = false;
        if (!good || one.stale) answers.delete(address);
        if (one.stale) outdated(runsOf(address));
      };
      one.answer.then(
        () => came(true),
        () => came(false),
      );
      answers.set(address, one);
      for (const oldest of answers.keys()) {
        if (answers.size <= KEPT) break;
        answers.delete(oldest);
      }
    }
    return answers.get(address).answer;
  };
  return {
    exported: held !== null,
    get,
    /** Answers about these runs are asked for again; null: all. */
    forget(runs) {
      for (const [address, one] of [...answers]) {
        const about = runsOf(address);
        if (runs !== null && about.length && !about.some((run) => runs.includes(run))) continue;
        if (one.waits)
          one.stale = true; // It is drawn when it comes, as changes may come faster; then it is asked for anew.
        else answers.delete(address);
      }
    },
    /** Returns the curves of runs. In an export each run has its own, over all its steps. */
    async curves(runs, name, x, zoom) {
      if (!held) {
        const [from, to] = zoom ?? [null, null];
        return (await get("/api/curves", { run: runs, name, x, from, to, points: 800 })).curves;
      }
      const found = await Promise.allSettled(runs.map((run) => get("/api/curves", { run, name, x })));
      return found.flatMap((each) => (each.status === "fulfilled" ? each.value.curves : []));
    },
    /** Returns the address of a picture; in an export it holds the picture itself. */
    picture(run, file) {
      const address = addressOf("/api/picture", { run, file });
      if (!held) return address.slice(1);
      const found = String(held.get(address) ?? "");
      return /^data:image\/(png|jpeg);base64,/.test(found) ? found : "";
    },
    follow: (changed, state) => (held ? state("export") : follow(changed, state)),
  };
}

/**
 * Listens for changes, for ever.
 *
 * Calls `changed(runs)`, or `changed(null)` where some may have been missed, and `state("live")` or `state("off")`.
 */
function follow(changed, state) {
  let [source, timer] = [null, 0];
  const open = () => {
    source = new EventSource("api/changes");
    source.onopen = () => {
      state("live");
      changed(null); // What has changed before this.
    };
    source.addEventListener("changed", (event) => {
      try {
        const { runs } = JSON.parse(event.data);
        changed(Array.isArray(runs) ? runs : null);
      } catch {
        changed(null);
      }
    });
    source.onerror = () => {
      state("off");
      source.close();
      clearTimeout(timer);
      timer = setTimeout(open, 2000);
    };
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
  };
  // A page that nobody sees listens to nothing: a browser has few connections to one server for all its pages.
  document.addEventListener("visibilitychange", () => (close(), document.hidden || open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && (close(), open()));
  if (!document.hidden) open();
}
