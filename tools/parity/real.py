# SPDX-License-Identifier: Apache-2.0
"""`make parity`, second part: real weights end to end, SmolLM2-135M-Instruct through every command, as a user would.

`python tools/parity/real.py --peer PYTHON [--model DIRECTORY]`: import; the loss on shipped text beside that of
transformers; a chat by the model's template; 20 steps of further training on a mesh of 8 devices, with a falling loss;
export; and transformers with that export, whose logits must be ours. Without a directory, `smollm2.py` makes one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.data import ShippedCorpus
from dovetail.zoo.recipes import eval_on_text, finetune
from parity.ours import error

HERE = Path(__file__).parent
QUESTION = "What is the capital of France?"
LENGTH, LOSS, LOGITS = 128, 1e-4, 1e-4


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="an interpreter with torch and transformers")
    parser.add_argument("--model", metavar="DIRECTORY")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        model = Path(args.model or place / "smollm2")
        if args.model is None:
            run([args.peer, str(HERE / "smollm2.py"), "make", str(model)])
        checks = list(steps(model, place, args.peer))
    for name, found, ok in checks:
        print(f"{'ok' if ok else 'FAILED':6} {name:44} {found}")
    return 0 if all(ok for _, _, ok in checks) else 1


def steps(model: Path, place: Path, peer: str) -> Any:
    """Yields the name of each check, what was found, and whether that is as it should be."""
    text, tokens, imported = place / "text.txt", place / "tokens.txt", place / "run"
    text.write_text("".join(str(each) for each in held_out())[:8000], encoding="utf-8")
    rows = token_rows(model, text)
    tokens.write_text("\n".join(" ".join(map(str, row)) for row in rows) + "\n", encoding="utf-8")
    run([peer, str(HERE / "smollm2.py"), "expect", str(model), str(place / "e.npz"), "--tokens", str(tokens)])
    expected = np.load(place / "e.npz")
    dovetail("import", str(model), "--to", str(imported))
    found = json.loads(dovetail("eval", str(imported), "--text", str(text), f"input.seq_len={LENGTH}", "--json"))
    loss = found["eval/loss"]
    difference = abs(loss - float(expected["loss"]))
    yield "loss on shipped text, beside transformers", f"{loss:.6f}, {float(expected['loss']):.6f}", difference < LOSS
    answer = json.loads(dovetail("generate", str(imported), "--chat", QUESTION, "tokens=32", "--json"))["text"]
    said = str(expected["answer"]).partition("<|im_end|>")[0]
    yield "chat", repr(answer), answer.strip() == said.strip()
    tuned, whole = place / "tuned", place / "whole.txt"
    whole.write_text("".join(str(each) for each in held_out())[8000:200_000], encoding="utf-8")
    train = ["--text", str(whole), "--mesh", "data=2,fsdp=4", "steps=20", "learner.schedule.peak=1e-4"]
    dovetail("train", f"hf:{model}", *train, f"input.seq_len={LENGTH}", "log_every=1", f"directory={tuned}")
    losses = [json.loads(line).get("loss") for line in (tuned / "metrics.jsonl").read_text().splitlines()]
    losses = [each for each in losses if each is not None]
    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    yield "20 steps on 8 devices, mean of 5 losses", f"{first:.3f} -> {last:.3f}", last < first
    target, head = place / "out", place / "head.txt"
    dovetail("export", str(tuned), "--to", str(target))
    head.write_text(" ".join(map(str, rows[0])) + "\n", encoding="utf-8")
    dovetail("generate", str(tuned), "--tokens", str(head), "--logits", str(place / "o.npy"))
    run([peer, str(HERE / "peer.py"), "load", str(target), "--tokens", str(head), "--out", str(place / "p.npz")])
    far = error(np.load(place / "o.npy"), np.load(place / "p.npz")["logits"])
    yield "logits of the export in transformers, and ours", f"{far:.1e}", far < LOGITS
    same = all((target / name).read_bytes() == (model / name).read_bytes() for name in CARRIED)
    yield "files that come back as they were", ", ".join(CARRIED), same


CARRIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def held_out() -> list[Any]:
    source = ShippedCorpus.Config().set(split="held-out").build()
    return [source[i].content for i in range(len(source))]


def token_rows(model: Path, text: Path) -> list[list[int]]:
    """Returns the rows that `eval` reads, each with the token after it."""
    cfg = finetune(f"hf:{model}").set_in("input.seq_len", LENGTH)
    found = eval_on_text(cfg, [str(text)]).evaluators["eval"]
    rows: list[list[int]] = []
    for batch in found.get_in("input").build():
        for ids, targets, weights in zip(batch["tokens"], batch["targets"], batch["weights"], strict=True):
            count = int(weights.sum())
            if count:
                rows.append([*ids[:count].tolist(), int(targets[count - 1])])
    return rows


def dovetail(*words: str) -> str:
    return run([str(Path(sys.executable).with_name("dovetail")), *words])


def run(command: Sequence[str]) -> str:
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command[:3])} ... ended with {ran.returncode}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
