# SPDX-License-Identifier: Apache-2.0
"""lm-eval against our server, and against transformers with the same weights, on a task made of shipped text.

`python tools/parity/harness.py hf:DIRECTORY --peer PYTHON` starts `dovetail serve`, and runs lm-eval of an interpreter
that has it (`pip install torch transformers accelerate peft 'lm-eval[api]'`) with `local-completions`, which needs
`echo` with log-probabilities of the prompt; then with `hf`. Both must find the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.data import ShippedCorpus

TASK = """
task: shipped
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_target: 0
doc_to_choice: "{{{{[right, wrong]}}}}"
metric_list:
  - metric: acc
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="hf:DIRECTORY")
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="an interpreter with lm-eval")
    parser.add_argument("--count", type=int, default=24, help="of questions")
    args = parser.parse_args(argv)
    directory = args.model.removeprefix("hf:")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        write_task(place, args.count)
        peer = evaluated(args.peer, place, "hf", f"pretrained={directory},dtype=float32", "peer")
        command = [str(Path(sys.executable).with_name("dovetail")), "serve", args.model, "--port", "0"]
        with open(place / "log", "w", encoding="utf-8") as log:
            server = subprocess.Popen([*command, "serving.slots=4"], stdout=log, stderr=subprocess.STDOUT)
        try:
            address = ready(place / "log", server)
            options = f"model={Path(directory).name},base_url={address}/v1/completions,tokenizer={directory}"
            ours = evaluated(args.peer, place, "local-completions", f"{options},num_concurrent=4,max_retries=1", "ours")
        finally:
            server.terminate()
            server.wait()
    far = max(abs(a - b) for a, b in zip(ours, peer, strict=True))
    print(f"{len(peer)} log-probabilities of texts, the largest difference {far:.2e} (values to {min(peer):.0f})")
    return 0 if far < 1e-2 else 1


def write_task(place: Path, count: int) -> None:
    """Writes questions: which of two texts goes on with a text of the shipped corpus."""
    source = ShippedCorpus.Config().set(split="held-out").build()
    text = "".join(str(source[i].content) for i in range(len(source)))
    rows: list[dict[str, str]] = []
    for i in range(count):
        at, other = 700 * i, 700 * (i + 7) + 350
        rows.append(
            {"text": text[at : at + 300], "right": text[at + 300 : at + 360], "wrong": text[other : other + 60]}
        )
    data = place / "shipped.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (place / "shipped.yaml").write_text(TASK.format(data=data), encoding="utf-8")


def ready(log: Path, server: Any) -> str:
    """Returns the address of a server that has started."""
    for _ in range(600):
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("Serving ")]
        if lines:
            return next(word for word in lines[0].split() if word.startswith("http://")).rstrip("/")
        if server.poll() is not None:
            break
        time.sleep(0.5)
    raise SystemExit(log.read_text(encoding="utf-8"))


def evaluated(python: str, place: Path, kind: str, options: str, name: str) -> list[float]:
    """Returns the log-probabilities that lm-eval finds, in the order of the questions."""
    out = place / name
    command = [python, "-m", "lm_eval", "run", "--model", kind, "--model_args", options, "--tasks", "shipped"]
    command += ["--include_path", str(place), "--output_path", str(out), "--log_samples", "--batch_size", "1"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    ran = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1800, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr[-3000:])
    print("\n".join(line for line in ran.stdout.splitlines() if "shipped" in line), flush=True)
    samples = next(out.rglob("samples_shipped*.jsonl")).read_text(encoding="utf-8").splitlines()
    found = sorted((json.loads(line) for line in samples), key=lambda each: each["doc_id"])
    return [float(answer[0]) for each in found for answer in each["filtered_resps"]]


if __name__ == "__main__":
    sys.exit(main())
