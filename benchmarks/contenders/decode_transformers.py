# SPDX-License-Identifier: Apache-2.0
"""Greedy generation by Hugging Face transformers, with the same weights. It runs in an interpreter that has it."""
# pyright: reportMissingImports=false

import sys

import torch
import transformers
from _problem import Problem, answer_each, problem, prompts

_NAMES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def model_of(data: Problem) -> torch.nn.Module:
    cfg = transformers.LlamaConfig(
        vocab_size=data.vocab_size,
        hidden_size=data.dim,
        intermediate_size=data.hidden_dim,
        num_hidden_layers=data.num_layers,
        num_attention_heads=data.num_heads,
        rms_norm_eps=data.rms_eps,
        rope_theta=data.theta,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(cfg).eval()
    weights = data.weights()
    state = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"]}
    for ours, theirs in _NAMES.items():
        for i in range(data.num_layers):
            state[f"model.layers.{i}.{theirs}.weight"] = weights[ours][i].T
    missing = model.load_state_dict({name: torch.tensor(value.copy()) for name, value in state.items()}, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}, missing
    return model


def main() -> None:
    data, batch, new = problem(), int(sys.argv[2]), int(sys.argv[3])
    model = model_of(data)
    ids = torch.tensor(prompts(data, batch), dtype=torch.int64)
    fixed = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}

    def run() -> dict[str, object]:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **fixed)
        return {"tokens": out[:, ids.shape[1] :].tolist()}

    answer_each(run, versions={"torch": torch.__version__, "transformers": transformers.__version__})


if __name__ == "__main__":
    main()
