# SPDX-License-Identifier: Apache-2.0
"""What fused attention kernels are asked for, in their own terms: a band round the diagonal, documents, and more."""

from collections.abc import Collection
from dataclasses import dataclass

from .._attention import AttentionInputs, Scoring
from .._kernel_choice import Support
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
            return None if bands[0] is None or bands[1] is None else bands[0] & bands[1]
        case _:
            return None


def offers(kernel: str, offered: Collection[str], inputs: AttentionInputs, scoring: Scoring) -> Support:
    """Refuses what is asked for besides a causal mask and is not among what a kernel offers."""
    band = band_of(scoring.mask)
    asked = {
        f"the mask {scoring.mask}": band is None,
        "a window": band is not None and band.window is not None,
        "packed documents": band is not None and band.documents and inputs.q_tokens.segment is not None,
        "soft_cap": scoring.soft_cap is not None,
        "a bias": inputs.bias is not None,
        "sinks": inputs.sinks is not None,
    }
    missing = [what for what, is_asked in asked.items() if is_asked and what not in offered]
    return Support(f"{kernel} does not offer {missing[0]}") if missing else Support()
