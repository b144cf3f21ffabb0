# SPDX-License-Identifier: Apache-2.0
"""Heat maps: numbers as a picture, without a library to draw with."""

import struct
import zlib

import numpy as np

# From dark to bright, also for those who cannot tell red from green, and in print.
_COLOURS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)
_MISSING = (200, 200, 200)


def heat_map(values: np.ndarray, low: float, high: float, *, cell: tuple[int, int] = (10, 14)) -> bytes:
    """Returns a PNG of a matrix, a cell for each number: dark for `low`, bright for `high`, grey for nan.

    Args:
        cell: height and width of a cell in pixels.
    """
    share = np.clip((np.asarray(values, np.float64) - low) / (high - low), 0, 1) * (len(_COLOURS) - 1)
    known = np.isfinite(share)
    share = np.where(known, share, 0.0)
    first = np.minimum(share.astype(int), len(_COLOURS) - 2)
    part = (share - first)[..., None]
    colours = _COLOURS[first] * (1 - part) + _COLOURS[first + 1] * part
    colours = np.where(known[..., None], colours, _MISSING).round().astype(np.uint8)
    return png(np.repeat(np.repeat(colours, cell[0], 0), cell[1], 1))


def png(pixels: np.ndarray) -> bytes:
    """Returns pixels, `[height, width, 3]` of bytes for red, green and blue, as a file in the format PNG."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], 1)  # 0: rows are as they are.
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(rows.tobytes()), b"IEND": b""}
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
