# SPDX-License-Identifier: Apache-2.0
"""What the catalogue says of chips on clusters: in the words of Kubernetes, and an error where nothing is said."""

import math
import re

import pytest

from dovetail.config import ConfigError, from_json, to_json
from dovetail.hardware import CHIPS, cluster_of, hardware, offer_of

KNOWN = [(chip, provider) for chip in CHIPS.values() for provider in chip.kubernetes]
KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
QUANTITY = re.compile(r"\d+(Mi|Gi|Ti|m)?")


def name(value):
    return getattr(value, "name", value)


@pytest.mark.parametrize("chip, provider", KNOWN, ids=name)
def test_what_is_said_of_a_cluster_is_in_the_words_of_kubernetes(chip, provider):
    cluster = chip.kubernetes[provider]
    keys = [cluster.resource, *cluster.selector, *cluster.levels, *cluster.network.resources, *cluster.requests]
    keys += [each.key for each in cluster.tolerations] + [*cluster.network.annotations]
    assert [key for key in keys if not KEY.fullmatch(key)] == []
    amounts = [*cluster.network.resources.values(), *cluster.requests.values()]
    assert [each for each in amounts if not QUANTITY.fullmatch(str(each))] == []
    assert set(cluster.requests) <= {"cpu", "memory"}
    assert "hugepages-2Mi" not in cluster.network.resources or cluster.requests  # Kubernetes wants one with the other.
    assert cluster.near is None or cluster.near in cluster.levels
    assert not cluster.levels or cluster.levels[-1] == "kubernetes.io/hostname"
    assert cluster.source
    paths = {**cluster.paths, **cluster.network.paths}
    assert len({each.mount for each in paths.values()}) == len(paths)
    for sidecar in cluster.network.sidecars.values():
        assert all(paths.get(key, each).node == each.node for key, each in sidecar.paths.items())
    assert from_json(to_json(cluster)) == cluster


@pytest.mark.parametrize("chip, provider", KNOWN, ids=name)
def test_chips_that_come_in_slices_are_found_by_the_shape_of_one(chip, provider):
    cluster = chip.kubernetes[provider]
    texts = [value.format(topology="4x8x8") for value in cluster.selector.values()]
    assert ("4x8x8" in texts) == (chip.torus is not None) == (cluster.slice_label is not None)


def test_a_host_of_trainium_tells_its_devices_who_they_are():
    told = CHIPS["trn2"].kubernetes["eks"].worker_environment
    assert told["NEURON_PJRT_PROCESS_INDEX"] == "{rank}"
    assert math.prod(hardware("trn2-64").host_shape) * CHIPS["trn2"].devices == 64


def test_the_only_provider_needs_no_name():
    assert cluster_of(hardware("trn1-16"))[0] == "eks"
    assert cluster_of(hardware("gpu-h100-8"), "gke")[1].machine == "a3-megagpu-8g"


@pytest.mark.parametrize(
    "on, provider, said",
    [
        ("gpu-h100-8", None, r"launch\.provider is not set, and gpu-h100 is known of gke and eks"),
        ("tpu-v4-8", "aks", r"launch\.provider is 'aks', and tpu-v4 is known of gke only"),
        ("gpu-gb200-4", None, "not known what pods need for gpu-gb200"),
        ("cpu-1", "gke", "not known what pods need for cpu"),
    ],
)
def test_a_cluster_that_is_not_known_is_an_error_with_those_that_are(on, provider, said):
    with pytest.raises(ConfigError, match=said):
        cluster_of(hardware(on), provider)


def test_what_skypilot_calls_chips():
    offered = {chip.name: chip.skypilot.accelerator for chip in CHIPS.values() if chip.skypilot is not None}
    assert offered["gpu-h100"] == "H100"
    assert offered["tpu-v5e"].format(number=16) == "tpu-v5litepod-16"
    assert all(chip.skypilot.source for chip in CHIPS.values() if chip.skypilot is not None)
    with pytest.raises(ConfigError, match="not known what SkyPilot calls gpu-mi300x"):
        offer_of(hardware("gpu-mi300x-8"))
