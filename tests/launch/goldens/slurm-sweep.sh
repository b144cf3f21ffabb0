#!/bin/bash
#SBATCH --job-name=llama2-7b-374e903d
#SBATCH --comment="dovetail 374e903d3f0568c8 /runs/a"
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --array=0-2%2
#SBATCH --output=/runs/a/launch/job-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --export=HOME,USER,LANG,PATH,TMPDIR
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
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
export DOVETAIL_ID="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
case "$SLURM_ARRAY_TASK_ID" in
  0) directory=/runs/a/sweep/peak=1e-3; set -- learner.schedule.peak=1e-3 ;;
  1) directory=/runs/a/sweep/peak=3e-3; set -- learner.schedule.peak=3e-3 ;;
  2) directory=/runs/a/sweep/peak=1e-2; set -- learner.schedule.peak=1e-2 ;;
esac
cancelled && end_cancelled
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
python=$(python3 "$root/code/dovetail/launch/_interpreter.py" "$root/constraints.txt" "$work") || exit 2
export PYTHONPATH=$root/code PYTHONSAFEPATH=1 DOVETAIL_BUNDLE=$root
PREPARE
eval "$prepare"
export SLURM_EXPORT_ENV=ALL
DOVETAIL_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
DOVETAIL_SUPERVISOR=$("$python" -m dovetail.launch addresses) || exit 1
export DOVETAIL_TOKEN DOVETAIL_SUPERVISOR
trap : TERM  # Slurm asks the processes of a job to end: they save, and this waits for them.
rm -f "$directory/launch/code"
echo "launch: job $DOVETAIL_ID, start ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST"
srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 --wait=0 \
  bash -c "$prepare"$'
''exec "$python" -m dovetail.launch host "$@"' host \
  '{"arguments":["train","llama2-7b","--on","gpu-h100-8","steps=100"],"processes":1,"least":1,"supervision":{"$format":1,"$config":"dovetail.launch:Supervision","$explicit":[],"heartbeat":5.0,"hang_factor":20.0,"hang_least":10.0,"start_least":60.0,"start_limit":900.0,"straggler_factor":1.5,"max_restarts":60,"same_step":3,"quarantine_after":3,"backoff":1.0,"backoff_most":60.0,"grace":60.0,"rescue":3.0},"status":{"$format":1,"$config":"dovetail.progress:Status","$explicit":[],"on":true,"host":"127.0.0.1","port":0,"token_file":null},"patience":3.0,"together":1}' \
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
if [ "$code" = 85 ] || { [ "$code" -ge 128 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ]; }; then
  echo "launch: job $DOVETAIL_ID is to be started again"
  trap - TERM
  if scontrol show config | grep -Eq '^RequeueExit +=(.*[ ,])?85(,|$)'; then exit 85; fi
  scontrol requeue "$SLURM_JOB_ID" && ended
  exit 85
fi
echo "launch: job $DOVETAIL_ID ends with $code"
exit "$code"
