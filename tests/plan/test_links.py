# SPDX-License-Identifier: Apache-2.0
"""How long sending takes, against what links can carry."""

import itertools
from types import SimpleNamespace

import pytest

from dovetail.aot import Sent
from dovetail.hardware import CHIPS, hardware
from dovetail.plan import constants_of
from dovetail.plan._links import Links

TPU, GPU = (constants_of(CHIPS[name]) for name in ("tpu-v5p", "gpu-h100"))

MB = 10**6


def _torus(name):
    found = hardware(name)
    places = itertools.product(*(range(size) for size in found.shape))
    return Links(found, [SimpleNamespace(id=i, coords=place, slice_index=0) for i, place in enumerate(places)])


def _gpus(count):
    return Links(hardware(f"gpu-h100-{count}"), [SimpleNamespace(id=i) for i in range(count)])


def _sent(kind, members, size=1000 * MB):
    return Sent(kind, ("fsdp",), size, tuple(members))


def test_a_gather_over_a_torus_uses_both_directions_of_every_ring():
    links = _torus("tpu-v5p-512")
    found = links.seconds(_sent("all-gather", range(256)))
    assert found.channel == "links"
    assert found.seconds == pytest.approx(1e9 / (6 * 100e9 * TPU.links), rel=0.02)
    ring = links.seconds(_sent("all-gather", range(8)))  # The last dimension.
    assert ring.seconds == pytest.approx(1e9 * 7 / 8 / (2 * 100e9 * TPU.links), rel=0.02)


def test_a_reduction_takes_twice_as_long_as_a_gather():
    links = _torus("tpu-v5p-512")
    gather, reduce = (links.seconds(_sent(kind, range(256))).seconds for kind in ("all-gather", "all-reduce"))
    assert reduce == pytest.approx(2 * gather)


def test_without_a_ring_the_ends_have_one_link():
    links = _torus("tpu-v5e-16")
    assert links.seconds(_sent("all-gather", range(4))).seconds == pytest.approx(0.75e9 / (50e9 * TPU.links), rel=0.01)


def test_gpus_of_a_node_use_their_links_and_those_of_several_the_network():
    links = _gpus(64)
    inside = links.seconds(_sent("all-gather", range(8)))
    assert inside.channel == "links"
    assert inside.seconds == pytest.approx(1e9 * 7 / 8 / (450e9 * GPU.links), rel=0.01)
    one_of_each = links.seconds(_sent("all-gather", range(0, 64, 8)))
    assert one_of_each.channel == "network"
    assert one_of_each.seconds == pytest.approx(1e9 * 7 / 8 / (50e9 * GPU.links), rel=0.01)
    everyone = links.seconds(_sent("all-gather", range(64)))  # All eight of a node bring it in together.
    assert everyone.seconds == pytest.approx(1e9 * 7 / 8 / (400e9 * GPU.links), rel=0.02)


def test_little_takes_as_long_as_the_way():
    assert _gpus(64).seconds(_sent("all-reduce", range(64), 4)).seconds > 1e-5
    assert _torus("tpu-v5p-512").seconds(_sent("all-reduce", range(256), 4)).seconds > 1e-5
