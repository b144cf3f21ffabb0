# SPDX-License-Identifier: Apache-2.0
"""Steps that others have measured: a row of a table becomes a model, a layout and a chip, or a reason why it cannot.

A table is a CSV file with the columns `system`, `model`, `hw`, `chips`, `precision`, `seq`, `gbs`, `parallelism`,
`remat` and `step_s`, and optionally `tokens_per_step`, `tok_s_chip`, `tflops_per_chip` and `source`. What a row does
not say is assumed, and said.
"""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS, Hardware, hardware
from dovetail.plan import YEAR, Measured, Stated

from .families import assumed_batch, measured_model
from .recipes import pretrain

_COLUMNS = ("system", "model", "hw", "chips", "precision", "seq", "gbs", "parallelism", "remat", "step_s")
_CHIPS = (  # The first that is found in what a table calls it.
    (r"gb300", "gpu-gb300"),
    (r"gb200", "gpu-gb200"),
    (r"b300", "gpu-b300"),
    (r"b200", "gpu-b200"),
    (r"h200", "gpu-h200"),
    (r"h100|h800", "gpu-h100"),
    (r"a100", "gpu-a100"),
    (r"mi300x", "gpu-mi300x"),
    (r"v5p", "tpu-v5p"),
    (r"v5e|v5 ?lite", "tpu-v5e"),
    (r"v6e|trillium", "tpu-v6e"),
    (r"v7x?|ironwood|tpu7x", "tpu-v7x"),
    (r"v4", "tpu-v4"),
    (r"trn2|trainium ?2", "trn2"),
    (r"trn1|trainium", "trn1"),
)
_BITS = ((r"fp4|float4", 4), (r"fp8|float8", 8), (r"bf16|bfloat16|fp16", 16))
_AXES = {"tp": "tensor", "pp": "pipeline", "cp": "seq", "ep": "expert", "fsdp": "fsdp", "dp": "data", "vp": "rounds"}
_NAMES = {"ici_fsdp_parallelism": "fsdp", "ici_fsdp_transpose_parallelism": "fsdp", "ici_tensor_parallelism": "tp"}
_EAGER = ("megatron", "torchtitan", "automodel", "nemo", "pytorch", "deepspeed")
_MEGATRON = ("megatron",)  # In the names of systems that lay out as Megatron-LM does.


def read_measured(file: str) -> list[Mapping[str, str]]:
    """Returns the rows of a table of measured steps."""
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{file}: there is no such file.\n  Give a CSV file with the columns {', '.join(_COLUMNS)}.")
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        there = reader.fieldnames or ()
        missing = [name for name in _COLUMNS if name not in there]
        if missing:
            raise ConfigError(
                f"{file}: the columns {', '.join(missing)} are missing.\n  There are: {', '.join(there) or 'none'}."
            )
        return list(reader)


def rebuild(row: Mapping[str, str]) -> Measured:
    """Returns a measured step as what a prediction needs; a ConfigError says why that is not possible."""
    notes: list[str] = []
    model = measured_model(row["model"])
    found = _hardware(row, notes)
    seq, rows = _batch(row, found, notes)
    cfg = pretrain("measured", model, seq_len=seq, batch_size=rows)
    tokens = seq * rows
    seconds = _number(row, "step_s") or (
        tokens / (_number(row, "tok_s_chip") * found.num_chips) if _number(row, "tok_s_chip") else 0
    )
    if not seconds:
        raise ConfigError("there is neither a time of the step nor tokens per second.")
    stated = _stated(row, found)
    bits = next((bits for pattern, bits in _BITS if re.search(pattern, row["precision"].lower())), None)
    if bits is None:
        raise ConfigError(f"the precision {row['precision']!r} is not known.")
    system = row["system"]
    return Measured(
        cfg=cfg,
        tokens=seq,
        hardware=found,
        stated=stated,
        bits=bits,
        megatron=any(name in system.lower() for name in _MEGATRON),
        eager=any(name in system.lower() for name in _EAGER),
        drops="tokendrop" in row["model"].lower(),
        flops=_number(row, "tflops_per_chip") * 1e12 * found.num_chips * seconds / tokens,
        watts=_watts(row["hw"]),
        year=_year(row.get("source", "")),
        seconds=seconds,
        system=system,
        model=row["model"],
        source=row.get("source", ""),
        precision=_precision(row["precision"], bits),
        notes=notes,
    )


def _number(row: Mapping[str, str], name: str) -> float:
    try:
        return float(row.get(name) or 0)
    except ValueError as e:
        raise ConfigError(f"{name} is {row[name]!r}, expected a number.") from e


def _hardware(row: Mapping[str, str], notes: list[str]) -> Hardware:
    name = next((chip for pattern, chip in _CHIPS if re.search(pattern, row["hw"].lower())), None)
    if name is None:
        raise ConfigError(f"the chip {row['hw']!r} is not known.")
    chip, chips = CHIPS[name], int(_number(row, "chips"))
    if chips < 1:
        raise ConfigError("the number of chips is missing.")
    slices = int(match[1]) if (match := re.search(r"x (\d+) slices", row["parallelism"])) else 1
    if match := re.search(r"dcn_dp=(\d+)", row["parallelism"]):
        slices = int(match[1])
    largest = 256 if chip.torus is not None and not chip.torus.max_cubes else chips
    slices = max(slices, chips // largest)
    return hardware(f"{name}-{chips // slices * chip.unit}" + (f"x{slices}" if slices > 1 else ""))


def _batch(row: Mapping[str, str], found: Hardware, notes: list[str]) -> tuple[int, int]:
    """Returns the length of sequences, and how many there are in a step."""
    seq, rows = int(_number(row, "seq")), int(_number(row, "gbs"))
    tokens = int(_number(row, "tokens_per_step"))
    if not rows and tokens and seq:
        rows = tokens // seq
    if rows and seq:
        return seq, rows
    if assumed := assumed_batch(row["system"], row["model"]):
        length, count = assumed
        notes.append(f"the batch is not given: {count} sequences of {length:,}, as the system's own code has")
        return assumed
    if seq and _number(row, "tok_s_chip"):
        notes.append("the batch is not given: 16,384 tokens a chip")
        return seq, max(1, 16_384 * found.num_chips // seq)
    raise ConfigError("there is no size of the batch, nor tokens per second.")


def _stated(row: Mapping[str, str], found: Hardware) -> Stated | None:
    """Returns what a row says of the layout; None where it says nothing of it."""
    text = row["parallelism"].lower()
    for name, short in _NAMES.items():
        text = text.replace(name, short)
    sizes: dict[str, int] = {}
    for name, value in re.findall(r"(tp|pp|cp|ep|fsdp|dp|vp|mbs|ga|grad_acc)=?(-?\d+|rest)", text):
        if name == "dp" and "dcn_dp" in text:
            continue
        if name not in sizes or value == "-1":  # The first, but what takes all that is left counts.
            sizes[name] = -1 if value in ("rest", "-1") else int(value)
    if "dp only" in text:
        sizes["dp"] = -1
    if text.strip() == "fsdp":
        sizes["fsdp"] = -1
    if "interleaved" in text:
        sizes["vp"] = 2
    elif "megatron-lm" in row["system"].lower() and sizes.get("pp", 1) > 1:
        sizes.setdefault("vp", 4)
    if not sizes:
        return None
    return Stated(
        {_AXES[name]: size for name, size in sizes.items() if name in _AXES},
        rows_at_once=sizes.get("mbs"),
        parts=sizes.get("ga") or sizes.get("grad_acc") or 1,
        remat=_remat(row["remat"]),
    )


def _remat(text: str) -> str | None:
    text = text.lower()
    if "minimal" in text:
        return "save_dots"
    if "qkv" in text:
        return "save_qkvo"
    return "full" if "full" in text or "decoder_layer_input" in text else None


def _watts(text: str) -> float | None:
    match = re.search(r"(\d{3,4}) ?w\b", text.lower())
    return float(match[1]) if match else None


def _year(source: str) -> float:
    """Returns the year of a release such as `26.04.01 NeMo Container`."""
    match = re.search(r"\b(2\d)\.(0[1-9]|1[0-2])(?:\.\d+)?\b", source)
    return 2000 + int(match[1]) + (int(match[2]) - 0.5) / 12 if match else YEAR


def _precision(text: str, bits: int) -> str:
    """Returns one name for what releases of one system call differently."""
    if bits == 8:
        return "mxfp8" if "mx" in text.lower() and "cs" not in text.lower() else "fp8"
    return "bf16" if bits == 16 else "fp4"
