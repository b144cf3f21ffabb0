# SPDX-License-Identifier: Apache-2.0
"""A run as an observer is told of it, made up: the same for all of them."""

import zlib

import numpy as np

from dovetail.config import ConfigBase
from dovetail.train import Observer
from dovetail.train._heat_map import png

METRICS = {"loss": 2.5, "tokens_per_second": 12345.6, "mfu": 0.256}
PNG = png(np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3))
EDGES, COUNTS = [-1.0, 0.0, 2.0], [3, 5]
COLUMNS, ROWS = ["prompt", "tokens", "loss"], [["Call me", 7, 2.5], ["a | b\nc", 8, float("nan")]]
NAMES = ("eval/loss", "../../escape", "a b/%", "x" * 300, "")


class About(ConfigBase):
    """Something to be told of."""

    steps: int = 3
    path: str = "a = b"
    rate: float = 0.5


def drive(observer: Observer, directory, first=1, last=3):
    """Tells an observer of a run from one step to another."""
    observer.start(directory, first, last, "a run")
    observer.config(About(steps=last), {"recipe": "tiny", "parameters": 12, "mesh": None})
    for step in range(first, last + 1):
        observer.metrics(step, METRICS)
    observer.metrics(last, {"eval/loss": 2.25, "eval/accuracy": float("nan")})
    observer.text(last, "sample", "Call me [bold]Ishmael[/bold].")
    observer.picture(last, "weights/changes", PNG)
    observer.histogram(last, "weights/up", EDGES, COUNTS)
    observer.table(last, "sample/all", COLUMNS, ROWS)
    observer.stop()


def pixels(data: bytes) -> np.ndarray:
    """Returns the pixels of a PNG of ours, read by the standard of the format; fails if a checksum is wrong."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found, size = 8, b"", (0, 0)
    while at < len(data):
        length, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        assert int.from_bytes(data[at + 8 + length : at + 12 + length], "big") == zlib.crc32(name + body)
        if name == b"IHDR":
            size = (int.from_bytes(body[4:8], "big"), int.from_bytes(body[:4], "big"))
            assert body[8:] == bytes([8, 2, 0, 0, 0])
        found += body if name == b"IDAT" else b""
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(found), np.uint8).reshape(size[0], 1 + 3 * size[1])
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(*size, 3)
