# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows: pieces of HTML that fold, in the colours of the notebook. All that is not ours is text."""

import base64
from collections.abc import Iterable, Sequence

from ._picture import Picture
from ._text import marked_up

# Everything is in the colour of the text around it, more or less of it: it is readable on any ground.
_STYLE = (
    ".dovetail{font:13px/1.45 system-ui,sans-serif}"
    ".dovetail details{margin-left:1em}.dovetail>details{margin-left:0}"
    ".dovetail summary{cursor:pointer}"
    ".dovetail .row{margin-left:2.1em}"
    ".dovetail code{font:12px ui-monospace,monospace;background:none;color:inherit;padding:0;overflow-wrap:anywhere}"
    ".dovetail .dim{opacity:.6}"
    ".dovetail table{border-collapse:collapse;font-size:12px;margin:.4em 0}"
    ".dovetail details>table{margin-left:1em}"
    ".dovetail td,.dovetail th{padding:1px 10px 1px 0;text-align:left;border-bottom:1px solid rgba(128,128,128,.25)}"
    ".dovetail td.n,.dovetail th.n{text-align:right}"
    ".dovetail pre{font:12px ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;max-height:14em;"
    "overflow:auto;margin:.3em 0;background:none;color:inherit}"
)


def shown(*pieces: str) -> str:
    """Returns what a notebook shows, from pieces of HTML."""
    return f'<div class="dovetail"><style>{_STYLE}</style>{"".join(pieces)}</div>'


def code(text: str) -> str:
    """Returns a text as code."""
    return f"<code>{marked_up(text)}</code>"


def dim(text: str) -> str:
    """Returns a text that matters less."""
    return f'<span class="dim">{marked_up(text)}</span>'


def bold(text: str) -> str:
    """Returns a text that matters more."""
    return f"<b>{marked_up(text)}</b>"


def row(*pieces: str) -> str:
    """Returns a line."""
    return f'<div class="row">{" ".join(pieces)}</div>'


def folded(head: str, inside: Iterable[str], *, unfolded: bool = False) -> str:
    """Returns a line that unfolds, if there is something inside."""
    body = "".join(inside)
    if not body:
        return row(head)
    mark = ' open=""' if unfolded else ""
    return f"<details{mark}><summary>{head}</summary>{body}</details>"


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[bool]) -> str:
    """Returns a table of texts."""
    looks = [' class="n"' if each else "" for each in numeric]
    top = "".join(f"<th{look}>{marked_up(cell)}</th>" for cell, look in zip(head, looks, strict=True))
    lines = (
        "".join(f"<td{look}>{marked_up(cell)}</td>" for cell, look in zip(cells, looks, strict=True)) for cells in rows
    )
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def lines_of_text(text: str) -> str:
    """Returns a text of several lines, as it is."""
    return f"<pre>{'<br>'.join(map(marked_up, text.splitlines()))}</pre>"


def inline(picture: Picture, about: str) -> str:
    """Returns a picture inside of HTML: as an image, so that it cannot touch what is around it."""
    data = base64.b64encode(picture.svg.encode()).decode()
    return f'<img alt="{marked_up(about)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}"/>'
