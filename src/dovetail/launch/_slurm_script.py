# SPDX-License-Identifier: Apache-2.0
"""The script that Slurm is given: what a job asks for, and what it does on the first of its hosts.

It unpacks the bundle, finds a Python, and starts one `python -m dovetail.launch host` on each host, or one a chip, by
`srun`. When that is over it decides whether Slurm should start the job again.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from dovetail.config import ConfigError

from ._exit_codes import RESUMABLE

_MOST_RESTARTS = 10  # After a host of the run was killed: by then it is no accident.

_PREPARE = """\
fail() {{ echo "launch: $1" >&2; exit 1; }}
work={local}/dovetail-$(id -u)
mkdir -p -m 700 "$work" && [ -O "$work" ] || fail "$work is not ours"
root=$work/{bundle}
files() {{ find "$root" -type f ! -name '*.pyc' 2>/dev/null | wc -l; }}
(
  flock 9
  [ "$(files)" = {files} ] && exit 0
  rm -rf "$root" "$root.new"
  mkdir "$root.new" || fail "$work cannot be written"
  tar -xzf {archive} -C "$root.new" || fail "the bundle cannot be unpacked"
  mv "$root.new" "$root"
) 9>"$work/.lock" || exit 1
python=$({python} "$root/code/dovetail/launch/_interpreter.py" "$root/constraints.txt" "$work"{as_it_is}) || exit 2
export PYTHONPATH=$root/code PYTHONSAFEPATH=1 DOVETAIL_BUNDLE=$root
"""

_BODY = """\
set -u
ended() {{ read -rt 60 <> <(:) || :; }}  # Waits for Slurm to end this, without a process that could be left.
# A job that was cancelled while it waited to be started again, or while nobody could tell it, ends here.
cancelled() {{ grep -qsxF "$DOVETAIL_ID" "$directory/launch/cancelled"; }}
end_cancelled() {{
  echo "launch: job $DOVETAIL_ID was cancelled"
  trap - TERM
  scancel "$SLURM_JOB_ID" && ended
  exit 0
}}
export DOVETAIL_ID={id}
{choice}
cancelled && end_cancelled
{setup}read -r -d '' prepare <<'PREPARE'
{prepare}PREPARE
eval "$prepare"
export SLURM_EXPORT_ENV=ALL{per_host}
DOVETAIL_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
DOVETAIL_SUPERVISOR=$("$python" -m dovetail.launch addresses) || exit 1
export DOVETAIL_TOKEN DOVETAIL_SUPERVISOR
trap : TERM  # Slurm asks the processes of a job to end: they save, and this waits for them.
rm -f "$directory/launch/code"
echo "launch: job $DOVETAIL_ID, start ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"
srun {srun} \\
  bash -c "$prepare"$'\n''exec "$python" -m dovetail.launch host "$@"' host \\
  {work} \\
  "$directory" "$@" &
step=$!
goes_on() {{ kill -0 "$step" 2>/dev/null; }}
# The first host writes how the run has ended. A run that is over waits for no host that is lost. One that is to be
# started again does, until Slurm knows of the loss: before that, Slurm would wait for the host to clean up.
told() {{ cat "$directory/launch/code" 2>/dev/null; }}
left=6
while goes_on && [ "$left" -gt 0 ]; do
  sleep 0.3
  case $(told) in "" | {resumable}) ;; *) left=$((left - 1)) ;; esac
done
code=0
goes_on || wait "$step" || code=$?
code=$(told || echo "$code")
cancelled && end_cancelled
{again}echo "launch: job $DOVETAIL_ID ends with $code"
exit "$code"
"""

_AGAIN = """\
if [ "$code" = {resumable} ] || {{ [ "$code" -ge 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ]; }}; then
  echo "launch: job $DOVETAIL_ID is to be started again"
  trap - TERM
  if scontrol show config | grep -Eq '^RequeueExit +=(.*[ ,])?{resumable}(,|$)'; then exit {resumable}; fi
  scontrol requeue "$SLURM_JOB_ID" && ended
  exit {resumable}
fi
"""


class Script(NamedTuple):
    """What a script is made of."""

    options: Sequence[str]  # Of sbatch.
    srun: Sequence[str]  # Options of srun.
    work: str  # What the hosts do, as `Work.text`.
    directory: str  # Of the run, or of the sweep.
    bundle: str  # The hash.
    files: int  # In it.
    variants: Sequence[tuple[str, Sequence[str]]]  # Of a sweep: directory and overrides of each run.
    setup: Sequence[str]  # Lines of shell.
    python: str  # An interpreter; empty: one is found or made.
    local: str  # Where a host keeps the bundle, for the shell.
    requeues: bool
    by_chip: bool

    def text(self) -> str:
        """Returns the script. Nothing in it that is not shell by its meaning is ever executed."""
        for option in self.options:
            if set(option) & set("\n\r\0"):  # The next line would be a command.
                raise ConfigError(f"launch: sbatch takes options of one line, and this has several: {option!r}.")
        archive = f"{self.directory}/launch/bundles/{self.bundle}.tar.gz"
        prepare = _PREPARE.format(
            local=self.local,
            bundle=self.bundle,
            files=self.files,
            archive=shlex.quote(archive),
            python=shlex.quote(self.python) if self.python else "python3",
            as_it_is=" --as-it-is" if self.python else "",
        )
        body = _BODY.format(
            id='"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if self.variants else '"$SLURM_JOB_ID"',
            choice=self._choice(),
            setup="".join(f"{line}\n" for line in self.setup),
            prepare=prepare,
            per_host=" DOVETAIL_PER_HOST=chips" if self.by_chip else "",
            srun=" ".join(self.srun),
            work=shlex.quote(self.work),
            resumable=RESUMABLE,
            again=_AGAIN.format(resumable=RESUMABLE, most=_MOST_RESTARTS) if self.requeues else "",
        )
        return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in self.options), body])

    def _choice(self) -> str:
        """Returns the lines that say which directory and overrides are this job's."""
        if not self.variants:
            return f"directory={shlex.quote(self.directory)}\nset --"
        cases = [
            f"  {number}) directory={shlex.quote(where)}; set -- {shlex.join(overrides)} ;;"
            for number, (where, overrides) in enumerate(self.variants)
        ]
        return "\n".join(['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"])
