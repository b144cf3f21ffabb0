# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor`: what this machine has, whether a step runs on it, and what would make it faster."""

import argparse
import importlib.util
import json
import os
import shutil
import time
from typing import Any

from dovetail.hardware import SWITCH, host_settings, machine
from dovetail.progress import phase

# Package: what it is for. They are optional, and come with an extra.
_EXTRAS = {
    "array_record": "ArrayRecord files (extra: data)",
    "pyarrow": "Parquet files (extra: data)",
    "resvg_py": "pictures as PNG (extra: pictures)",
    "sentencepiece": "SentencePiece tokenizers (extra: data)",
}


def doctor(args: argparse.Namespace) -> int:
    """Prints the findings; returns 0 if a training step runs here, else 1."""
    with phase("looking for devices, and measuring them"):
        found: dict[str, Any] = {"machine": machine(), **_devices()}
    found["settings"] = {s.name: {"active": s.active, "available": s.active or bool(s.variables)} for s in _settings()}
    found["extras"] = {name: importlib.util.find_spec(name) is not None for name in _EXTRAS}
    with phase("compiling kernels for this CPU"):
        found["native_kernels"] = _native()
    found["free_disk_gib"] = round(shutil.disk_usage(".").free / 2**30, 1)
    with phase("trying a training step"):
        found["step"] = _tried()
    print(json.dumps(found, indent=2) if args.json else _text(found))
    return 0 if found["step"]["ok"] else 1


def _settings() -> Any:
    return host_settings(os.environ)


def _devices() -> dict[str, Any]:
    import jax

    from dovetail.train import measured_peak

    devices = jax.devices()
    return {
        "backend": jax.default_backend(),
        "devices": [getattr(device, "device_kind", str(device)) for device in devices],
        "matmul_gflops": round(measured_peak() / 1e9, 1),
    }


def _native() -> dict[str, Any]:
    """Says whether there are kernels for the CPU of this machine; compiles them, if need be."""
    from dovetail.ops import native

    found = native()
    return {"there": not found.reason, "reason": found.reason, "vector": found.width, "threads": found.threads}


def _tried() -> dict[str, Any]:
    """Makes a few training steps of a very small model, compiled for the devices that are here."""
    import jax

    from dovetail.module import init, specs
    from dovetail.train import init_state, train_step
    from dovetail.zoo import recipe

    start = time.perf_counter()
    try:
        cfg = recipe("tiny-lm").set_in("model.stack.num_layers", 1).set_in("input.batch_size", 2)
        model = cfg.model.build()
        learner = cfg.learner.build(specs=specs(model), steps=cfg.steps)
        batch = next(iter(cfg.input.build()))
        step = jax.jit(train_step(model, learner, seed=0, num_microbatches=1, dtype=None))
        state = init_state(init(model, jax.random.key(0)), learner)
        losses: list[float] = []
        for _ in range(5):
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"]))
    except Exception as e:
        return {"ok": False, "error": f"{type(e).__name__}: {e}"}
    return {"ok": losses[-1] < losses[0], "losses": losses, "seconds": round(time.perf_counter() - start, 1)}


def _text(found: dict[str, Any]) -> str:
    about = found["machine"]
    lines = [
        f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB; "
        f"disk: {found['free_disk_gib']} GiB free",
        ", ".join(f"{name} {about[name]}" for name in ("python", "dovetail", "jax", "jaxlib", "optax")),
        f"backend {found['backend']}: {', '.join(found['devices'])}; "
        f"{found['matmul_gflops']:,} GFLOP/s in float32 matrix products",
    ]
    for setting in _settings():
        if setting.active:
            state = "on"
        elif not setting.variables:
            state = "off"
        elif os.environ.get(SWITCH) == "plain":
            state = f"off ({SWITCH}=plain)"
        else:
            state = "on in train, eval, generate and bench"
        lines.append(f"{setting.name}: {state}" + ("" if state.startswith("on") else f"; {setting.text}"))
    lines += [f"{name}: {'there' if there else 'missing'}; {_EXTRAS[name]}" for name, there in found["extras"].items()]
    native = found["native_kernels"]
    state = f"there; vectors of {native['vector']}, {native['threads']} threads" if native["there"] else "missing"
    lines.append(f"native kernels to serve on CPUs: {state}" + ("" if native["there"] else f"; {native['reason']}"))
    step = found["step"]
    outcome = f"loss {step['losses'][0]:.3f} -> {step['losses'][-1]:.3f}" if "losses" in step else step["error"]
    lines.append(f"a training step: {'works' if step['ok'] else 'FAILS'}, {outcome}")
    return "\n".join(lines)
