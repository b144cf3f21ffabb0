# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of the board that docs/board.md shows: three real runs of `tiny-lm`, in Chromium.

`python tools/board_picture.py FILE.png [DIRECTORY]` trains them in a directory, where they are not yet. The font is
Inter, where Debian's fonts-inter is installed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.board_process import CHROMIUM, board
from support.browser import Browser

RUNS = {
    "baseline": [],
    "slower": ["learner.schedule.peak=0.003"],
    "two-layers": ["model.stack.num_layers=2"],
}
STEPS = 300
MOST_BYTES = 150_000
VIEW = "run=baseline&run=slower&run=two-layers&sort=name&smooth=0.6&" + "&".join(
    f"column={name}" for name in ("state", "progress", "loss", "rate")
)
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include>/etc/fonts/fonts.conf</include>%s</fontconfig>"""
FONT = """<match target="pattern"><test name="family"><string>%s</string></test>
<edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>"""


def train(directory: Path) -> None:
    """Trains the runs that are not there, one after the other."""
    for name, overrides in RUNS.items():
        where = directory / name
        if not (where / "metrics.jsonl").exists():
            every = ["log_every=2", "evaluators.eval.every=60", "evaluators.sample.every=100"]
            command = [sys.executable, "-m", "dovetail.cli", "train", "tiny-lm", f"steps={STEPS}", f"directory={where}"]
            subprocess.run([*command, *every, *overrides], check=True)


def take(directory: Path, file: Path) -> None:
    """Takes the picture of the board over these runs."""
    if CHROMIUM is None:
        sys.exit("board_picture: there is no Chromium. `make chromium` installs it.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        fonts = Path(home) / "fonts.conf"
        fonts.write_text(FONTS % "".join(FONT % name for name in ("system-ui", "sans", "sans-serif")))
        os.environ["FONTCONFIG_FILE"] = str(fonts)
        with board(directory) as address, Browser(CHROMIUM, Path(home) / "browser") as browser:
            browser.size(1280, 660)
            browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
            browser.open(f"{address}#{VIEW}")
            browser.wait("document.querySelectorAll('.plot canvas').length >= 4")
            browser.wait("document.querySelectorAll('[aria-busy=true]').length === 0")
            browser.run("document.querySelector('main').style.setProperty('--list', '42%')")
            browser.hover(".chart .u-over", 0.3)
            browser.wait("!document.querySelector('.tip').hidden")
            browser.hover(".chart .u-over", 0.35)  # Once more, where charts have their new width.
            cursor = "document.querySelector('.u-cursor-x').getBoundingClientRect().x"
            browser.wait(f"document.querySelector('.tip').offsetLeft > {cursor} + 8")
            browser.run("document.querySelector('.directory').textContent = 'runs'")  # Not where it is on this machine.
            browser.shot(file)
            assert browser.errors() == []
    if file.stat().st_size > MOST_BYTES:
        sys.exit(f"board_picture: {file} has {file.stat().st_size:,} bytes, at most {MOST_BYTES:,} are wanted.")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    file = Path(sys.argv[1])
    if len(sys.argv) == 3:
        train(Path(sys.argv[2]))
        take(Path(sys.argv[2]), file)
        return
    with tempfile.TemporaryDirectory() as directory:
        train(Path(directory))
        take(Path(directory), file)


if __name__ == "__main__":
    main()
