# SPDX-License-Identifier: Apache-2.0
"""Masks in the terms of fused kernels: a band round the diagonal, and documents."""

from dataclasses import dataclass

from .._masks import And, Causal, Full, Mask, SameSegment, SlidingWindow


@dataclass(frozen=True)
class Band:
    """Which keys a query sees: none after it if causal, fewer than `window` before it, those of its document."""

    causal: bool = False
    window: int | None = None
    documents: bool = False

    def __and__(self, other: "Band") -> "Band":
        windows = [each.window for each in (self, other) if each.window is not None]
        window = min(windows) if windows else None
        return Band(self.causal or other.causal, window, self.documents or other.documents)


def band_of(mask: Mask) -> Band | None:
    """Returns a mask as a band, if it is one."""
    match mask:
        case Full():
            return Band()
        case Causal():
            return Band(causal=True)
        case SlidingWindow(size):
            return Band(window=size)
        case SameSegment():
            return Band(documents=True)
        case And(a, b):
            bands = band_of(a), band_of(b)
            return None if None in bands else bands[0] & bands[1]
        case _:
            return None
