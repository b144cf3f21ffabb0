# SPDX-License-Identifier: Apache-2.0
"""`Canvas`: the few shapes that pictures are made of, in colours that the colour-blind tell apart, on light and dark.

A shape has its light colour as an attribute and a class, by which a style replaces the colour where the reader prefers
dark. The ground is part of the picture, so that it can be read wherever it stands.
"""

from collections.abc import Sequence
from typing import Literal

from ._picture import Picture
from ._text import marked_up, shortened

Ink = Literal["ground", "panel", "ink", "dim", "grid", "edge"]
Anchor = Literal["start", "middle", "end"]
Color = int | Ink  # The number of a series, or what a shape is.

# After Okabe and Ito: on light, and on dark.
_SERIES = (
    ("#0072b2", "#4aa8e0"),  # blue
    ("#d55e00", "#ff8c42"),  # vermilion
    ("#009e73", "#2cc898"),  # green
    ("#c5679c", "#e79ac6"),  # purple
    ("#b97900", "#f0b83c"),  # ochre
    ("#3a3a3a", "#d0d0d0"),  # grey
)
NUM_COLORS = len(_SERIES)
_INKS: dict[Ink, tuple[str, str]] = {
    "ground": ("#ffffff", "#0d1117"),
    "panel": ("#f4f5f7", "#1a212b"),
    "ink": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9aa4ae"),
    "grid": ("#e4e6e9", "#2b333d"),
    "edge": ("#b4bbc3", "#515b66"),
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
SIZE, SMALL = 12, 11  # Of letters.
DASHES = ("", "6 3", "2 3", "9 3 2 3")  # Lines of one colour differ by these.


class Canvas:
    """A picture in the making, `width` by `height` pixels. A height may be given when it is known, at the end."""

    def __init__(self, width: float, about: str) -> None:
        self.width, self._about = width, about
        self._parts: list[str] = []
        self._used: set[str] = set()

    def text(
        self,
        x: float,
        y: float,
        text: str,
        color: Color = "ink",
        *,
        anchor: Anchor = "start",
        size: float = SIZE,
        bold: bool = False,
        room: float | None = None,
        middle: bool = False,
        turned: bool = False,
    ) -> None:
        """Writes a text on the line `y`; `room`: into so many pixels, the whole of it in a hint if that is shorter."""
        shown = text if room is None else shortened(text, room, size, middle=middle)
        hint = f"<title>{marked_up(text)}</title>" if "…" in shown and "…" not in text else ""
        looks = [self._colored("fill", color)]
        looks += [f'text-anchor="{anchor}"'] if anchor != "start" else []
        looks += [f'font-size="{_n(size)}"'] if size != SIZE else []
        looks += ['font-weight="600"'] if bold else []
        looks += [f'transform="rotate(-90 {_n(x)} {_n(y)})"'] if turned else []
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}" {" ".join(looks)}>{hint}{marked_up(shown)}</text>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, color: Color = "grid", *, width: float = 1, dash: str = ""
    ) -> None:
        """Draws a straight line."""
        self.path([(x1, y1), (x2, y2)], color, width=width, dash=dash)

    def path(
        self,
        points: Sequence[tuple[float, float]],
        color: Color,
        *,
        width: float = 1.5,
        dash: str = "",
        opacity: float = 1,
        hint: str = "",
    ) -> None:
        """Draws a line through points."""
        looks = [self._colored("stroke", color), f'stroke-width="{_n(width)}"', 'fill="none"']
        looks += [f'stroke-dasharray="{dash}"'] if dash else []
        looks += [f'stroke-opacity="{_n(opacity)}"'] if opacity != 1 else []
        looks += ['stroke-linejoin="round"'] if len(points) > 2 else []
        self._shape("path", [f'd="{_d(points)}"', *looks], hint)

    def area(self, points: Sequence[tuple[float, float]], color: Color, *, opacity: float = 1, hint: str = "") -> None:
        """Fills the area within points."""
        looks = [self._colored("fill", color), *([f'fill-opacity="{_n(opacity)}"'] if opacity != 1 else [])]
        self._shape("path", [f'd="{_d(points)}Z"', *looks], hint)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: Color | None,
        *,
        edge: Color | None = None,
        radius: float = 0,
        opacity: float = 1,
        dash: str = "",
        hint: str = "",
    ) -> None:
        """Draws a rectangle, filled or with an edge or both."""
        looks = [f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"']
        looks += [self._colored("fill", color, edge)]
        looks += [f'rx="{_n(radius)}"'] if radius else []
        looks += [f'fill-opacity="{_n(opacity)}"'] if opacity != 1 else []
        looks += [f'stroke-dasharray="{dash}"'] if dash else []
        self._shape("rect", looks, hint)

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        color: Color | None,
        *,
        edge: Color | None = None,
        opacity: float = 1,
        hint: str = "",
    ) -> None:
        """Draws a circle, filled or with an edge or both."""
        looks = [f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"']
        looks += [self._colored("fill", color, edge)]
        looks += [f'fill-opacity="{_n(opacity)}"'] if opacity != 1 else []
        self._shape("circle", looks, hint)

    def cross(self, x: float, y: float, color: Color, *, reach: float = 3.5, hint: str = "") -> None:
        """Draws a small x."""
        d = "".join(f"M{_n(x - reach)} {_n(y - s * reach)}L{_n(x + reach)} {_n(y + s * reach)}" for s in (1, -1))
        self._shape("path", [f'd="{d}"', self._colored("stroke", color), 'stroke-width="1.5" fill="none"'], hint)

    def picture(self, height: float) -> Picture:
        """Returns what was drawn."""
        width, high = _n(self.width), _n(height)
        ground = self._colored("fill", "ground")
        dark = "".join(sorted(self._used))
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high}" width="{width}" height="{high}" '
            f'font-family="{_FONT}" font-size="{SIZE}" role="img">'
        )
        style = f"<style>@media (prefers-color-scheme: dark) {{ {dark}}}</style>"
        title = f"<title>{marked_up(self._about)}</title>"
        whole = f'<rect width="{width}" height="{high}" {ground}/>'
        return Picture("\n".join([head, title, style, whole, *self._parts, "</svg>\n"]))

    def _shape(self, kind: str, looks: Sequence[str], hint: str) -> None:
        inside = f"><title>{marked_up(hint)}</title></{kind}>" if hint else "/>"
        self._parts.append(f"<{kind} {' '.join(looks)}{inside}")

    def _colored(self, what: Literal["fill", "stroke"], color: Color | None, edge: Color | None = None) -> str:
        """Returns the attributes of a colour, and of that of an edge."""
        looks, names = (['fill="none"'] if color is None else []), list[str]()
        pairs: list[tuple[str, Color | None]] = [(what, color), ("stroke", edge)]
        for kind, each in pairs:
            if each is not None:
                name = each % NUM_COLORS if isinstance(each, int) else each
                light, dark = _SERIES[name] if isinstance(name, int) else _INKS[name]
                names.append(f"dt-{kind}-{name}")
                self._used.add(f".{names[-1]} {{ {kind}: {dark} }} ")
                looks.append(f'{kind}="{light}"')
        return " ".join([*looks, *([f'class="{" ".join(names)}"'] if names else [])])


def _d(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _n(value: float) -> str:
    """Returns a number of pixels, as short as can be."""
    text = f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 1 else f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
