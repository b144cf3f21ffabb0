# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's server, in float32: needs xllamacpp to serve, and gguf with NumPy to convert.

`serve_llama_cpp.py convert DIRECTORY FILE` makes a GGUF of a Llama-shaped model as transformers writes it.
`serve_llama_cpp.py serve FILE PORT SLOTS LENGTH THREADS` serves it until its standard input ends.
"""
# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {  # Of a layer: as transformers calls a matrix, and as llama.cpp does.
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def tensors(directory: Path) -> dict[str, np.ndarray]:
    """Returns all tensors of a directory as float32."""
    found: dict[str, np.ndarray] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with open(file, "rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
        data = np.memmap(file, mode="r", offset=8 + size)
        header.pop("__metadata__", None)
        for name, about in header.items():
            if about["dtype"] not in _DTYPES:
                raise SystemExit(f"{file}: {name} is {about['dtype']}, expected one of {', '.join(_DTYPES)}.")
            start, end = about["data_offsets"]
            value = data[start:end].view(_DTYPES[about["dtype"]]).reshape(about["shape"])
            if about["dtype"] == "BF16":
                value = (value.astype(np.uint32) << 16).view(np.float32)
            found[name] = value.astype(np.float32)
    if not found:
        raise SystemExit(f"{directory}: has no *.safetensors.")
    return found


def llama_name(name: str) -> str:
    """Returns what llama.cpp calls a tensor."""
    whole = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    if name in whole:
        return f"{whole[name]}.weight"
    parts = name.split(".")
    middle = ".".join(parts[3:-1])
    if parts[:2] != ["model", "layers"] or parts[-1] != "weight" or middle not in _NAMES:
        raise SystemExit(f"{name}: only models shaped as Llama can be converted. Name a GGUF with --gguf.")
    return f"blk.{parts[2]}.{_NAMES[middle]}.weight"


def paired(value: np.ndarray, heads: int) -> np.ndarray:
    """Returns queries or keys with what rotates together side by side, as llama.cpp has it."""
    return value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)


def convert(directory: Path, file: Path) -> None:
    """Writes the model of a directory as a GGUF in float32."""
    import gguf

    cfg = json.loads((directory / "config.json").read_text("utf-8"))
    if cfg["model_type"] != "llama":
        raise SystemExit(f"{directory}: is a {cfg['model_type']} model, expected llama. Name a GGUF with --gguf.")
    heads, kv_heads = cfg["num_attention_heads"], cfg.get("num_key_value_heads") or cfg["num_attention_heads"]
    rope = cfg.get("rope_parameters") or cfg
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(cfg["max_position_embeddings"])
    writer.add_embedding_length(cfg["hidden_size"])
    writer.add_block_count(cfg["num_hidden_layers"])
    writer.add_feed_forward_length(cfg["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(cfg.get("head_dim") or cfg["hidden_size"] // heads)
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    writer.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    writer.add_vocab_size(cfg["vocab_size"])
    _add_tokenizer(writer, directory, cfg["vocab_size"])
    for name, value in tensors(directory).items():
        if name == "lm_head.weight" and cfg.get("tie_word_embeddings"):
            continue
        counts = {"q_proj": heads, "k_proj": kv_heads}
        count = counts.get(name.split(".")[-2])
        writer.add_tensor(llama_name(name), paired(value, count) if count else value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, directory: Path, size: int) -> None:
    """Adds what turns tokens into text. Prompts are token ids, so how text is split does not matter."""
    import gguf

    read = json.loads((directory / "tokenizer.json").read_text("utf-8"))
    if read["model"]["type"] != "BPE" or read["model"].get("byte_fallback"):
        raise SystemExit(f"{directory}: its tokenizer is not BPE of bytes. Name a GGUF with --gguf.")
    kinds = gguf.TokenType
    names, types = [f"[unused{i}]" for i in range(size)], [int(kinds.UNUSED)] * size
    for text, token in read["model"]["vocab"].items():
        names[token], types[token] = text, int(kinds.NORMAL)
    for added in read.get("added_tokens", []):
        names[added["id"]] = added["content"]
        types[added["id"]] = int(kinds.CONTROL if added["special"] else kinds.USER_DEFINED)
    merges = [" ".join(each) if isinstance(each, list) else each for each in read["model"]["merges"]]
    cfg = json.loads((directory / "config.json").read_text("utf-8"))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    for key, add in (("bos_token_id", writer.add_bos_token_id), ("eos_token_id", writer.add_eos_token_id)):
        if isinstance(cfg.get(key), int):
            add(cfg[key])


def serve(file: str, port: int, slots: int, length: int, threads: int) -> None:
    """Serves a GGUF; its slots have caches in float32."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = file, port
    params.n_parallel, params.n_ctx = slots, slots * length
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        serve(sys.argv[2], *map(int, sys.argv[3:7]))
