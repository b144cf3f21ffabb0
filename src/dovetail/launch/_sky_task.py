# SPDX-License-Identifier: Apache-2.0
"""The task of a run for SkyPilot: what its config and the hardware catalogue say, put together. Pure."""

import math
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError
from dovetail.hardware import Hardware, hardware, offer_of

from ._exit_codes import BAD_HOST, RESUMABLE
from ._host import Work
from ._launcher import Job, check_reads
from ._names import job_name

if TYPE_CHECKING:
    from ._skypilot import SkyPilot

PREFIX = "dovetail-"  # Names of jobs that are ours begin so.
_LONGEST = 40
_SETUP = """\
set -eu
{before}cd ~/dovetail
mkdir -p bundle
tar -xzf bundle.tar.gz -C bundle
{python} bundle/code/dovetail/launch/_interpreter.py bundle/constraints.txt ~/dovetail >python
"$(cat python)" -m pip install --quiet --constraint bundle/constraints.txt "jax[{extra}]"
"""
_RUN = """\
set -eu
export DOVETAIL_BUNDLE=~/dovetail/bundle PYTHONPATH=~/dovetail/bundle/code PYTHONSAFEPATH=1
export DOVETAIL_SUPERVISOR="$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{port}" DOVETAIL_SLOT="$SKYPILOT_NODE_RANK"
exec "$(cat ~/dovetail/python)" -m dovetail.launch host {work} {directory}
"""


def name_of(cfg: "SkyPilot.Config", job: Job) -> str:
    """Returns the name of a job."""
    return PREFIX + job_name(job, cfg.name, most=_LONGEST)


def task_of(cfg: "SkyPilot.Config", job: Job) -> dict[str, Any]:
    """Returns the task."""
    hw = _checked(cfg, job)
    directory, offer = _directory(job, cfg), offer_of(hw)
    least = hw.num_hosts if cfg.min_processes is None else cfg.min_processes
    work = Work(job.arguments, hw.num_hosts, least, cfg.supervision, job.status, cfg.patience)
    assert job.bundle is not None
    mounts: dict[str, Any] = {
        cfg.mount: {"source": cfg.bucket, "mode": "MOUNT_CACHED"},
        "~/dovetail/bundle.tar.gz": f"./{job.bundle.hash}.tar.gz",
    }
    before = "".join(f"{line}\n" for line in cfg.setup)
    return {
        "name": name_of(cfg, job),
        "num_nodes": hw.slices if offer.whole_slice else hw.num_hosts + cfg.spares,
        "resources": _resources(cfg, hw),
        "file_mounts": mounts,
        "envs": {"DOVETAIL_LAUNCH": name_of(cfg, job), **cfg.environment},
        "secrets": {"DOVETAIL_TOKEN": None},
        "setup": _SETUP.format(before=before, python=shlex.quote(cfg.python), extra=offer.extra),
        "run": _RUN.format(port=cfg.port, work=shlex.quote(work.text), directory=shlex.quote(directory)),
    }


def _resources(cfg: "SkyPilot.Config", hw: Hardware) -> dict[str, Any]:
    """Returns all ways that will do: spot before on demand, then by price; without a price, last."""
    every = sorted([hw, *map(hardware, cfg.alternatives)], key=lambda each: (each.price is None, each.price or 0.0))
    spots = {"first": (True, False), "only": (True,), "never": (False,)}[cfg.spot]
    ways = [
        {"accelerators": _accelerators(each), "use_spot": spot, **({"infra": infra} if infra else {})}
        for spot in spots
        for each in every
        for infra in (cfg.infra or ("",))
    ]
    codes = [RESUMABLE, BAD_HOST]
    recovery = {"strategy": cfg.recovery, "max_restarts_on_errors": 0, "recover_on_exit_codes": codes}
    image: Mapping[str, str] = {"image_id": cfg.image} if cfg.image is not None else {}
    return {"ordered" if cfg.ordered else "any_of": ways, **image, "job_recovery": recovery}


def _checked(cfg: "SkyPilot.Config", job: Job) -> Hardware:
    """Returns what a job is for; raises for what SkyPilot could not start."""
    hw = job.hardware
    if hw is None:
        raise ConfigError("launch: it is not said on what to run. Say it, as in --on gpu-h100-16.")
    whole = offer_of(hw).whole_slice
    if whole and hw.slices > 1:
        raise ConfigError(
            f"launch: {hw.name} is {hw.slices} slices, and SkyPilot does not join slices.\n"
            "  Use one slice, or --via kubernetes."
        )
    if cfg.spares and (whole or cfg.spares < 0):
        raise ConfigError(f"launch.spares is {cfg.spares}, and the hosts of a slice come together: use 0.")
    for name in cfg.alternatives:
        other = hardware(name)
        if (other.num_hosts, other.num_devices) != (hw.num_hosts, hw.num_devices) or offer_of(
            other
        ).whole_slice != whole:
            raise ConfigError(
                f"launch.alternatives: {name} has {other.num_hosts} hosts and {other.num_devices} devices, and "
                f"{hw.name} has {hw.num_hosts} and {hw.num_devices}.\n  A run has one mesh: name hardware with as many."
            )
    if cfg.min_processes is not None and not 1 <= cfg.min_processes <= hw.num_hosts:
        raise ConfigError(f"launch.min_processes is {cfg.min_processes}, expected 1 to {hw.num_hosts}.")
    if cfg.processes not in (1, hw.num_hosts):
        raise ConfigError(f"launch.processes is {cfg.processes}, and {hw.name} has {hw.num_hosts} hosts. Leave it out.")
    return hw


def _directory(job: Job, cfg: "SkyPilot.Config") -> str:
    if not cfg.bucket.startswith(("s3://", "gs://")):
        raise ConfigError(f"launch.bucket is {cfg.bucket!r}, expected s3://NAME or gs://NAME.")
    directory = PurePosixPath(job.directory.as_posix())
    if not directory.is_absolute() or not directory.is_relative_to(cfg.mount) or ".." in directory.parts:
        raise ConfigError(
            f"launch: the directory of the run is {str(directory)!r}, and hosts share only what is below "
            f"{cfg.mount!r}, which is {cfg.bucket}.\n  Say directory={cfg.mount}/{directory.name or 'NAME'}."
        )
    check_reads(job, cfg.mount, "hosts")
    return str(directory)


def _accelerators(hw: Hardware) -> str:
    offer = offer_of(hw)
    if offer.whole_slice:
        return offer.accelerator.format(number=hw.slice_chips * hw.chip.unit) + ":1"
    return f"{offer.accelerator}:{math.prod(hw.host_shape)}"
