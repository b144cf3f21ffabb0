# SPDX-License-Identifier: Apache-2.0
"""How long chips take to send each other something: by the links between them, or the network between slices."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail.aot import Sent
from dovetail.hardware import Hardware

_REACHED = {"tpu": 0.76, "cuda": 0.9}  # Of the bandwidth of links, in collectives.
_ALL_TO_ALL = 0.71  # Of that, where every pair has something of its own to send.
_HOP = {"tpu": 1e-6, "cuda": 5e-6}  # Seconds from one chip to the next.
_TWICE = ("all-reduce",)  # Reduced, then gathered.


class Transfer(NamedTuple):
    """How something is sent."""

    seconds: float
    channel: str  # Links or network: what uses the same one takes turns.


class Links:
    """The links between the devices of a mesh, in its order."""

    def __init__(self, hardware: Hardware, devices: Sequence[Any]) -> None:
        chip = hardware.chip
        self.hardware, self.platform = hardware, chip.platform
        self.link = (chip.link_bandwidth or 0.0) * _REACHED.get(chip.platform, 1.0) / chip.devices
        self.network = (chip.network or 0.0) * _REACHED["cuda"] / chip.devices
        self.places = [self._place(device) for device in devices]

    def seconds(self, sent: Sent) -> Transfer:
        """Returns what a collective takes alone."""
        slices = Counter(self.places[member][0] for member in sent.members)
        near, count = min(slices.values()), len(sent.members)
        coordinates = [self.places[member][1] for member in sent.members]
        inside, hops = self._inside(sent, coordinates)
        times = 2 if sent.kind in _TWICE else 1
        size = times * sent.bytes
        wait = times * _HOP.get(self.platform, 0.0)
        if len(slices) == 1:
            share = 1.0 if sent.kind == "collective-permute" else 1 - 1 / count
            return Transfer(size * share / max(inside, 1.0) + wait * hops, "links")
        across = self.network * (1 if sent.kind in ("all-to-all", "collective-permute") else near)
        if sent.kind == "all-to-all":
            across *= _ALL_TO_ALL
        if self.platform != "tpu" and inside:
            across = min(across, inside)
        return Transfer(size * (1 - 1 / len(slices)) / max(across, 1.0) + wait * (hops + math.log2(len(slices))), "network")

    def _place(self, device: Any) -> tuple[int, tuple[int, ...]]:
        """Returns the slice of a device, and where in a torus it is."""
        if self.hardware.chip.torus is None:
            size = self.hardware.slice_chips * self.hardware.chip.devices
            return device.id // size, (device.id % size,)
        return getattr(device, "slice_index", 0) or 0, tuple(device.coords)

    def _inside(self, sent: Sent, coordinates: list[tuple[int, ...]]) -> tuple[float, int]:
        """Returns the bytes/s of a device inside of a slice, and how far the farthest member is."""
        chip = self.hardware.chip
        if chip.torus is None:
            fast = self.link * (chip.links or 0)
            return fast * (_ALL_TO_ALL if sent.kind == "all-to-all" else 1.0), 1
        spans = [sorted(set(along)) for along in zip(*coordinates, strict=True)]
        links, hops, longest = 0, 0, 1
        for along, size, wrap in zip(spans, self.hardware.shape, self.hardware.wrap, strict=False):
            if len(along) == 1:
                continue
            ring = wrap and len(along) == size and size > 2
            links += 2 if ring else 1
            reach = size // 2 if ring else along[-1] - along[0]
            hops, longest = hops + reach, max(longest, reach)
        if sent.kind == "collective-permute":
            return self.link / max(1, hops), hops
        if sent.kind == "all-to-all":  # On average, each byte takes half of the longest way, over all links in turn.
            return self.link * max(1, links) / max(1.0, longest / 2), hops
        return self.link * max(1, links), hops


