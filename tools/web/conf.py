# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for `make site`; `tools/web/build.py` sets what depends on where it runs."""

import inspect
import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ["DOVETAIL_ROOT"])
# Sphinx has an environment of its own; what dovetail needs to be imported is in the usual one, and comes last.
sys.path[:0] = [str(ROOT / "src")]
sys.path += map(str, (ROOT / ".venv" / "lib").glob("python3*/site-packages"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dovetail  # noqa: E402

project, author, copyright = "Dovetail", "the authors of Dovetail", "the authors of Dovetail"
version = release = dovetail.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Pages are those that GitHub shows: the same headings have the same anchors, and nothing else is added to Markdown.
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
# A `text` block may hold anything; a type may be called as a field of another class is (`bytes`), and is no link then.
suppress_warnings = ["misc.highlighting_failure", "ref.python"]

html_theme = "furo"
html_title = f"Dovetail {release}"
html_show_sourcelink = html_copy_source = False
html_theme_options = {"source_repository": "", "top_of_page_buttons": []}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "exclude-members": "Config,__new__,__init__"}
autodoc_inherit_docstrings = False
add_module_names = False
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 100

_CODE = re.compile(r"(``?)(.+?)\1")
_FIELD = re.compile(r"^ {8}(\w+): (.+?)(?: = (.+?))?(?:  # (.+))?$")
_MARKUP = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")


def _as_rst(app, what, name, obj, options, lines):
    """Rewrites a docstring, which is Markdown in this project, as what autodoc reads."""
    if what == "data":  # A value has no docstring of its own, but that of its type.
        lines[:] = []
        return
    found, was_blank, in_block = [], True, False
    for line in _whole_spans(lines):
        indent = len(line) - len(line.lstrip())
        is_example = line.lstrip().startswith((">>>", "..."))
        if was_blank and indent >= 4 and not in_block and not is_example and not _in_section(found):
            found += ["::", ""]
            in_block = True
        in_block = in_block and (not line.strip() or indent >= 4)
        found.append(line if in_block or is_example or _is_output(found) else _escaped(line))
        was_blank = not line.strip()
    lines[:] = [*found, "", *_fields(obj)] if what == "class" else found


def _whole_spans(lines):
    """Returns lines in which no code in backticks goes on in the next line."""
    found = list(lines)
    for at in range(len(found) - 1):
        if found[at].count("`") % 2 and "`" in found[at + 1]:
            rest = found[at + 1].lstrip()
            begin, _, end = rest.partition("`")
            word, _, after = end.partition(" ")
            found[at] = f"{found[at]} {begin}`{word}"
            found[at + 1] = found[at + 1][: len(found[at + 1]) - len(rest)] + after
    return found


def _fields(obj):
    """Returns the fields of the config of a component, with what stands beside them in its source."""
    config = vars(obj).get("Config")
    if config is None:
        return []
    try:
        source = inspect.getsource(config).splitlines()[1:]
    except (OSError, TypeError):
        return []
    found, before = [], []
    for line in source:
        comment = re.match(r"^ {8}# (.+)$", line)
        if comment:
            before.append(comment[1])
            continue
        field = _FIELD.match(line)
        if field and "ClassVar" not in line:
            name, kind, default, beside = field.groups()
            text = _escaped(" ".join([*before, *([beside] if beside else [])]))
            value = "" if default in (None, "REQUIRED") else f" = {default}"
            found.append(f"- ``{name}: {kind}{value}``{'  ' + text if text else ''}")
        elif line.startswith(("        def ", "        @")):
            break
        before = []
    return [".. rubric:: Config", "", *found, ""] if found else []


def _in_section(found):
    headings = [line for line in found if line and not line.startswith(" ")]
    return bool(headings) and headings[-1] in ("Args:", "Returns:", "Raises:", "Yields:")


def _is_output(found):
    """Whether the next line is what an example prints: it comes right after it, up to a blank line."""
    for line in reversed(found):
        if not line.strip():
            return False
        if line.lstrip().startswith((">>>", "...")):
            return True
    return False


def _escaped(line):
    parts, at = [], 0
    for match in _CODE.finditer(line):
        ends = "\\ " if line[match.end() : match.end() + 1].isalnum() else ""  # As in a plural of a name.
        parts += [_MARKUP.sub(r"\\\g<0>", line[at : match.start()]), f"``{match[2]}``{ends}"]
        at = match.end()
    return "".join([*parts, _MARKUP.sub(r"\\\g<0>", line[at:])])


def setup(app):
    app.connect("autodoc-process-docstring", _as_rst, priority=1)  # Before napoleon.
