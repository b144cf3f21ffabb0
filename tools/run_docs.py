# SPDX-License-Identifier: Apache-2.0
"""Executes the Markdown pages, so that what they show is what happens.

`python tools/run_docs.py [--update] [PAGE ...]` runs the given pages, or all, each in its own process.

The Python blocks of a page run in order, in one module. What a block prints, then `ExceptionName: message`
if it raises, must equal the `text` block right after it; without such a block it must print nothing and not
raise. The commands of a `console` block run too, and must print what it shows (tools/doc_commands.py); a page that
has one runs in a directory of its own. Bash blocks do not run, but each `make X` in them must name a target of the
Makefile, and each `dovetail` command what there is. `--update` rewrites the text blocks. It adds none, so that an
exception is never shown by mistake.
"""

import argparse
import contextlib
import difflib
import io
import itertools
import linecache
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import fast_compile
from doc_commands import caches_in, check_bash, run_console

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Block:
    """A fenced block: `line` and `end` are the line numbers of its fences, `body` is without the indent."""

    info: str
    indent: str
    line: int
    end: int
    body: list[str]


def pages(root: Path = ROOT) -> list[Path]:
    """Returns the pages that must run: README, CONTRIBUTING and everything below `docs`."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def run_page(page: Path, *, update: bool = False) -> list[str]:
    """Executes `page` in this process and returns what is wrong with it, as `page:line: message` each."""
    lines = page.read_text("utf-8").removesuffix("\n").split("\n")
    try:
        blocks = list(_blocks(lines))
    except ValueError as e:
        return [f"{page}:{e}"]
    if any(block.info == "console" for block in blocks):
        page = page.resolve()
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), caches_in(directory):
            return _run_blocks(page, lines, blocks, update)
    return _run_blocks(page, lines, blocks, update)


def _run_blocks(page: Path, lines: list[str], blocks: Sequence[Block], update: bool) -> list[str]:
    module = _page_module(page, len(lines), blocks)
    failures: list[str] = []
    outputs: list[tuple[Block, list[str]]] = []
    for block, successor in itertools.zip_longest(blocks, blocks[1:]):
        where = f"{page}:{block.line}"
        if block.info == "python":
            got, trace = _execute(block, module)
            if _is_output(successor, of=block, lines=lines):
                outputs.append((successor, got))
                if got != successor.body and not update:
                    diff = _diff(successor, got)
                    failures.append("\n".join([f"{where}: the output is not the one shown", *diff, *trace]))
            elif got:
                failures.append("\n".join([f"{where}: no text block shows this output", *got, *trace]))
        elif block.info.startswith("py"):
            failures.append(f"{where}: '{block.info}' would not run; a block of Python is 'python'")
        elif block.info == "bash":
            failures += [f"{where}: the Makefile has no target '{name}'" for name in _unknown_targets(block)]
            failures += [f"{where}: {problem}" for problem in check_bash(block.body)]
        elif block.info == "console":
            failures += [f"{where}: {problem}" for problem in run_console(block.body)]
    if update:
        for text, output in reversed(outputs):  # from the end, so that the other line numbers stay true
            lines[text.line : text.end - 1] = [text.indent + line if line else "" for line in output]
        page.write_text("\n".join(lines) + "\n", "utf-8")
    return failures


def _blocks(lines: Sequence[str]) -> Iterator[Block]:
    """Yields the fenced blocks. A block ends at a fence of at least the length of the one that opened it."""
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if not (opening := re.fullmatch(r"( *)(`{3,}|~{3,}) *([^`]*)", line)):
            continue
        indent, fence, info = opening.groups()
        closing = re.compile(rf" *{fence}{fence[0]}* *")
        body: list[str] = []
        for end, inner in numbered:
            if closing.fullmatch(inner):
                yield Block(info.strip(), indent, number, end, body)
                break
            body.append(inner.removeprefix(indent))
        else:
            raise ValueError(f"{number}: this block does not end")


def _page_module(page: Path, num_lines: int, blocks: Sequence[Block]) -> types.ModuleType:
    """Returns an importable module whose source is `page` with everything but its Python left blank.

    Line numbers are those of the page, and pickle and `inspect.getsource` work as for any other module.
    """
    source = ["\n"] * num_lines
    for block in blocks:
        if block.info == "python":
            source[block.line : block.end - 1] = [line + "\n" for line in block.body]
    file = str(page.resolve())
    never_reread = None  # In place of a time of modification: the file holds the prose too.
    linecache.cache[file] = (len(source), never_reread, source, file)
    module = types.ModuleType("guide_" + re.sub(r"\W", "_", page.stem.lower()))
    module.__file__ = file
    sys.modules[module.__name__] = module
    return module


def _execute(block: Block, module: types.ModuleType) -> tuple[list[str], list[str]]:
    """Returns the lines that `block` prints, followed by what it raises, and the traceback."""
    source = "\n" * block.line + "\n".join(block.body)
    output = io.StringIO()
    error = trace = ""
    with contextlib.redirect_stdout(output):
        try:
            exec(compile(source, str(module.__file__), "exec", dont_inherit=True), module.__dict__)
        except (Exception, SystemExit) as e:
            message = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
            error = "\n".join([message, *getattr(e, "__notes__", [])])
            trace = traceback.format_exc()
    printed = output.getvalue()
    if printed and not printed.endswith("\n"):
        printed += "\n"
    shown = (printed + error).removesuffix("\n").split("\n") if printed or error else []
    return shown, trace.splitlines()


def _is_output(text: Block | None, *, of: Block, lines: Sequence[str]) -> TypeGuard[Block]:
    """Whether `text` is a text block that comes right after the block `of`."""
    return text is not None and text.info == "text" and not "".join(lines[of.end : text.line - 1]).strip()


def _diff(text: Block, got: Sequence[str]) -> Iterator[str]:
    return difflib.unified_diff(text.body, got, f"text block in line {text.line}", "output", lineterm="")


def _unknown_targets(block: Block) -> list[str]:
    targets = re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = re.sub(r"#.*", "", "\n".join(block.body))
    return [name for name in re.findall(r"\bmake +([a-z][\w-]*)", commands) if name not in targets]


def set_environment() -> None:
    """Sets JAX up as pages have it: what they show does not depend on the shell from which they are run."""
    for name in [name for name in os.environ if name.startswith(("JAX_", "XLA_"))]:
        del os.environ[name]
    os.environ.update({"JAX_PLATFORMS": "cpu", **fast_compile.VARIABLES})


def main(argv: Sequence[str]) -> int:
    """run_docs.py [--update] [PAGE ...]"""
    parser = argparse.ArgumentParser(prog="run_docs.py", description="Execute the Markdown pages.")
    parser.add_argument("--update", action="store_true", help="rewrite the text blocks")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all")
    args = parser.parse_args(argv)
    if missing := [str(page) for page in args.pages if not page.is_file()]:
        parser.error(f"no such page: {', '.join(missing)}")
    if len(args.pages) != 1:  # Each in a process of its own: JAX can be set up only once.
        command = [sys.executable, __file__, *["--update"] * args.update]
        chosen = args.pages or [os.path.relpath(page) for page in pages()]
        return 1 if [page for page in chosen if subprocess.run([*command, page]).returncode] else 0
    set_environment()
    warnings.simplefilter("error")
    failures = run_page(args.pages[0], update=args.update)
    print(*failures, sep="\n\n", end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
