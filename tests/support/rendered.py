# SPDX-License-Identifier: Apache-2.0
"""Jobs for everything in the hardware catalogue that Kubernetes has, and random ones."""

import math
import random

from dovetail.hardware import CHIPS, hardware
from golden_launch import job_on, kubernetes

WITH = [(chip, provider) for chip in CHIPS.values() for provider in chip.kubernetes]


def sizes(chip):
    """Returns hardware of a chip: part of a host, a host, several, several slices."""
    if chip.torus is not None:
        shapes = [math.prod(map(int, each.split("x"))) for each in chip.torus.shapes]
        names = [f"{chip.name}-{n * chip.unit}" for n in (shapes[0], shapes[len(shapes) // 2], shapes[-1])]
        return [hardware(name) for name in dict.fromkeys([*names, f"{names[-1]}x3"])]
    return [hardware(f"{chip.name}-{n}") for n in (2, chip.host, 4 * chip.host)]


def cases():
    """Yields an engine and a job for everything in the catalogue, without and with spares."""
    for chip, provider in WITH:
        for hw in sizes(chip):
            per_job = hw.num_hosts // hw.slices if chip.torus is not None else 1
            for spares in (0, 2 * per_job):
                yield kubernetes(provider=provider, spares=spares), job_on(hw.name)


def random_cases(seed, count):
    """Yields engines and jobs that somebody might ask for."""
    draw = random.Random(seed)
    for _ in range(count):
        chip, provider = draw.choice(WITH)
        hw = draw.choice(sizes(chip))
        per_job = hw.num_hosts // hw.slices if chip.torus is not None else 1
        yield (
            kubernetes(
                provider=provider,
                spares=draw.choice([0, 1, 3]) * per_job,
                min_processes=draw.choice([None, 1, hw.num_hosts]),
                queue=draw.choice([None, "research"]),
                topology=draw.choice(["preferred", "required", "none"]),
                account=draw.choice([None, "buckets"]),
                pod_priority=draw.choice([None, "high"]),
                user=draw.choice([0, 1000]),
                keep=draw.choice([None, 3600]),
                grace=draw.choice([None, 300]),
                environment={"A": "$(B) $C", "D": ""},
                annotations={"example.com/note": "yes"},
                selector={"example.com/pool": "a"},
                resources=draw.choice([{}, {"cpu": 8}, {"ephemeral-storage": "100Gi"}]),
            ),
            job_on(hw.name),
        )
