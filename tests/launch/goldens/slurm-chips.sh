#!/bin/bash
#SBATCH --job-name=llama2-7b-374e903d
#SBATCH --comment="dovetail 374e903d3f0568c8 /runs/a"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:h100:8
#SBATCH --output=/runs/a/launch/job-%j.log
#SBATCH --open-mode=append
#SBATCH --export=HOME,USER,LANG,PATH,TMPDIR
#SBATCH --no-requeue
set -u
ended() { read -rt 60 <> <(:) || :; }  # Waits for Slurm to end this, without a process that could be left.
# A job that was cancelled while it waited to be started again, or while nobody could tell it, ends here.
cancelled() { grep -qsxF "$DOVETAIL_ID" "$directory/launch/cancelled"; }
end_cancelled() {
  echo "launch: job $DOVETAIL_ID was cancelled"
  trap - TERM
  scancel "$SLURM_JOB_ID" && ended
  exit 0
}
export DOVETAIL_ID="$SLURM_JOB_ID"
directory=/runs/a
set --
cancelled && end_cancelled
module load cuda
ulimit -l unlimited
read -r -d '' prepare <<'PREPARE'
fail() { echo "launch: $1" >&2; exit 1; }
work=${TMPDIR:-/tmp}/dovetail-$(id -u)
mkdir -p -m 700 "$work" && [ -O "$work" ] || fail "$work is not ours"
root=$work/374e903d3f0568c8
files() { find "$root" -type f ! -name '*.pyc' 2>/dev/null | wc -l; }
(
  flock 9
  [ "$(files)" = 3 ] && exit 0
  rm -rf "$root" "$root.new"
  mkdir "$root.new" || fail "$work cannot be written"
  tar -xzf /runs/a/launch/bundles/374e903d3f0568c8.tar.gz -C "$root.new" || fail "the bundle cannot be unpacked"
  mv "$root.new" "$root"
) 9>"$work/.lock" || exit 1
python=$(/opt/python/bin/python3 "$root/code/dovetail/launch/_interpreter.py" "$root/constraints.txt" "$work" --as-it-is) || exit 2
export PYTHONPATH=$root/code PYTHONSAFEPATH=1 DOVETAIL_BUNDLE=$root
PREPARE
eval "$prepare"
export SLURM_EXPORT_ENV=ALL DOVETAIL_PER_HOST=chips
DOVETAIL_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
DOVETAIL_SUPERVISOR=$("$python" -m dovetail.launch addresses) || exit 1
export DOVETAIL_TOKEN DOVETAIL_SUPERVISOR
trap : TERM  # Slurm asks the processes of a job to end: they save, and this waits for them.
rm -f "$directory/launch/code"
echo "launch: job $DOVETAIL_ID, start ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST"
srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 --wait=0 \
  bash -c "$prepare"$'
''exec "$python" -m dovetail.launch host "$@"' host \
  '{"arguments":["train","llama2-7b","--on","gpu-h100-16","steps=100"],"processes":16,"least":16,"supervision":{"$format":1,"$config":"dovetail.launch:Supervision","$explicit":[],"heartbeat":5.0,"hang_factor":20.0,"hang_least":10.0,"start_least":60.0,"start_limit":900.0,"straggler_factor":1.5,"max_restarts":60,"same_step":3,"quarantine_after":3,"backoff":1.0,"backoff_most":60.0,"grace":60.0,"rescue":3.0},"status":{"$format":1,"$config":"dovetail.progress:Status","$explicit":[],"on":true,"host":"127.0.0.1","port":0,"token_file":null},"patience":3.0,"together":1}' \
  "$directory" "$@" &
step=$!
goes_on() { kill -0 "$step" 2>/dev/null; }
# The first host writes how the run has ended. A run that is over waits for no host that is lost. One that is to be
# started again does, until Slurm knows of the loss: before that, Slurm would wait for the host to clean up.
told() { cat "$directory/launch/code" 2>/dev/null; }
left=6
while goes_on && [ "$left" -gt 0 ]; do
  sleep 0.3
  case $(told) in "" | 85) ;; *) left=$((left - 1)) ;; esac
done
code=0
goes_on || wait "$step" || code=$?
code=$(told || echo "$code")
cancelled && end_cancelled
echo "launch: job $DOVETAIL_ID ends with $code"
exit "$code"
