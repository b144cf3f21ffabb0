# SPDX-License-Identifier: Apache-2.0
"""`Picture`: what is drawn, as SVG, which a notebook shows and a file keeps; as PNG with the extra `pictures`."""

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any

_FONTS = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Segoe UI", "Verdana")
_SCALE = 2  # Pixels of a PNG for one of the picture: sharp on dense screens.


class PictureError(ValueError):
    """A picture cannot be written, and its reader can do something about it."""


class Picture:
    """A picture. It has no scripts and asks for nothing from elsewhere."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, file: str | Path) -> Path:
        """Writes the picture, as the name of the file says: `.svg` or `.png`."""
        path = check_picture_file(file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix.lower() == ".png":
                path.write_bytes(self.png())
            else:
                path.write_text(self.svg, encoding="utf-8")
        except OSError as e:
            raise PictureError(f"{path}: cannot be written: {e.strerror or e}. Choose another place.") from e
        return path

    def png(self) -> bytes:
        """Returns the picture in pixels, two for one, on a light ground."""
        _check_png("a PNG")
        return _drawn(self.svg, _font(), _SCALE)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({len(self.svg):,} characters of SVG)"


def check_picture_file(file: str | Path) -> Path:
    """Returns the path of a picture to write; raises before anything is computed if it could not be written."""
    path = Path(file)
    suffix = path.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise PictureError(f"{str(file)!r}: expected a file that ends with .svg or .png, to say what to write.")
    if suffix == ".png":
        _check_png(str(file))
    return path


def _check_png(what: str) -> None:
    if importlib.util.find_spec("resvg_py") is None:
        raise PictureError(
            f"{what}: PNG needs resvg-py, which is not installed.\n"
            "  Install it with `pip install 'dovetail[pictures]'`, or write .svg, which needs nothing."
        )


@functools.cache
def _font() -> str:
    """Returns the name of a font that is here: what draws knows none by itself, and would leave texts out."""
    blank = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
    letter = blank.format('<text x="2" y="16" font-family="sans-serif">M</text>')
    nothing = _drawn(blank.format(""), _FONTS[0], 1)
    for name in _FONTS:
        if _drawn(letter, name, 1) != nothing:
            return name
    raise PictureError(
        f"a PNG needs a font, and none of these is installed: {', '.join(_FONTS)}.\n"
        "  Install one, as with `apt-get install fonts-dejavu-core`, or write .svg, which needs none."
    )


def _drawn(svg: str, font: str, scale: int) -> bytes:
    resvg: Any = importlib.import_module("resvg_py")
    return bytes(resvg.svg_to_bytes(svg_string=svg, zoom=scale, sans_serif_family=font))
