# SPDX-License-Identifier: Apache-2.0
"""A job of Slurm: what its config and the hardware catalogue say, put into a script. Pure."""

import math
import re
from typing import TYPE_CHECKING

from dovetail.config import ConfigError
from dovetail.hardware import Hardware

from ._host import Work
from ._launcher import Job
from ._slurm_ask import comment
from ._slurm_script import Script

if TYPE_CHECKING:
    from ._slurm import Slurm

_BACK = 3.0  # Seconds for a lost host to be there again: `srun` starts nothing anew, so only one that was not heard.


def script_of(cfg: "Slurm.Config", job: Job) -> str:
    """Returns the script of a job."""
    bundle = job.bundle
    assert bundle is not None
    if cfg.per_host == "chips" and job.hardware is None:
        raise ConfigError("launch.per_host is chips: say how many a host has, as in --on gpu-h100-8.")
    per = _chips(job.hardware) if cfg.per_host == "chips" else 1
    if cfg.processes % per:
        raise ConfigError(f"launch: {cfg.processes} processes are no whole hosts of {per} chips each.")
    hosts, least = cfg.processes // per + cfg.spares, cfg.min_processes or cfg.processes
    work = Work(job.arguments, cfg.processes, least, cfg.supervision, job.status, _BACK)
    survives = cfg.spares > 0 or least < cfg.processes  # The job goes on when a host is lost.
    script = Script(
        options=_options(cfg, job, hosts, per, survives),
        srun=[
            f"--nodes={hosts} --ntasks={hosts * per} --ntasks-per-node={per} --cpu-bind=none --mpi=none",
            "--kill-on-bad-exit=0 --wait=0",
            *(["--no-kill"] if survives else []),
        ],
        work=work.text,
        directory=str(job.directory),
        bundle=bundle.hash,
        files=len(bundle.files),
        variants=[(str(each.directory), each.overrides) for each in job.sweep],
        setup=cfg.setup,
        python=cfg.python,
        local=cfg.local,
        requeues=cfg.requeue,
        by_chip=cfg.per_host == "chips",
    )
    return script.text()


def _options(cfg: "Slurm.Config", job: Job, hosts: int, per: int, survives: bool) -> list[str]:
    """Returns the options of sbatch."""
    bundle, chips = job.bundle, _chips(job.hardware)
    names = job.hardware.chip.slurm if job.hardware is not None else None
    gres = f"{names.gres}:{chips}" if cfg.gres is None and names is not None else cfg.gres
    array = f"0-{len(job.sweep) - 1}" + (f"%{cfg.at_once}" if cfg.at_once else "") if job.sweep else ""
    logs = str(job.logs).replace("%", "%%")  # A pattern to Slurm.
    assert bundle is not None
    valued = {
        "job-name": job.name,
        "comment": comment(bundle.hash, str(job.directory)),
        "nodes": str(hosts),
        "ntasks-per-node": str(per),
        "partition": cfg.partition,
        "account": cfg.account,
        "qos": cfg.qos,
        "constraint": cfg.constraint,
        "gres": gres or "",
        "exclude": cfg.exclude,
        "time": cfg.time,
        "signal": f"TERM@{cfg.margin}" if cfg.time else "",
        "array": array,
        "output": f"{logs}/job-{'%A_%a' if job.sweep else '%j'}.log",
        "open-mode": "append",
        "export": ",".join(cfg.export) or "NIL",
    }
    plain = [*(["exclusive", "mem=0"] if cfg.exclusive else []), "requeue" if cfg.requeue else "no-requeue"]
    plain += ["no-kill"] if survives else []
    return [
        *(f"--{name}={_quoted(value)}" for name, value in valued.items() if value),
        *(f"--{name}" for name in plain),
        *cfg.options,
    ]


def _chips(hardware: Hardware | None) -> int:
    return 1 if hardware is None else math.prod(hardware.host_shape)


def _quoted(value: str) -> str:
    """Returns a value as lines of `#SBATCH` take it.

    >>> print(_quoted("/runs/a=1"), _quoted('/runs/a "b"'))
    /runs/a=1 "/runs/a \\"b\\""
    """
    is_plain = re.fullmatch(r"[\w./:=,@%+-]+", value, re.ASCII)
    return value if is_plain else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
