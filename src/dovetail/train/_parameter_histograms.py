# SPDX-License-Identifier: Apache-2.0
"""How parameters are distributed, and how much each layer has changed since it was last looked at."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dovetail.config import ConfigError
from dovetail.module import run_specs, specs
from dovetail.optim import by_path
from dovetail.progress import phase

from ._evaluator import Evaluated, Evaluator, Findings
from ._heat_map import heat_map
from ._observer import Histogram, Table

_COLUMNS = ("parameter", "values", "rms", "smallest", "largest", "relative change")
_LOW, _HIGH = -6.0, 0.0  # Of a picture: the logarithm of what is dark and bright. Fixed, so that steps compare.


class ParameterHistograms(Evaluator):
    """Histograms of parameters by path, and, from the second time on, of what has changed in them.

    A table has the size of each parameter and of its change; a picture has the change, relative to the parameter, by
    parameter (downwards, as in the table) and layer (to the right): from 1e-6, dark, to 1, bright. All of it is
    computed on the devices, wherever the parts of a parameter are, by comparing with each edge: nothing is gathered.
    """

    class Config(Evaluator.Config):
        bins: int = 64
        changes: bool = True  # Whether changes are looked at: that takes the memory of another copy of the parameters.

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        if not 1 <= cfg.bins <= 512:
            raise ConfigError(f"{self._path}.bins: is {cfg.bins}, expected 1 to 512.")
        model = self.program.model
        declared = by_path(specs(model)) | by_path(run_specs(model))
        self._stacked = {path for path, spec in declared.items() if spec.axes and spec.axes[0] == "layers"}
        self._before: dict[str, Array] | None = None
        self._measure = self.program.devices.jit(self._all, out_shardings=self.program.devices.everywhere)

    def run(self, at: Evaluated) -> Findings:
        params = {path: x for path, x in by_path(at.params).items() if jnp.issubdtype(x.dtype, jnp.floating)}
        before = self._before
        with phase("measuring the parameters"):
            found = jax.device_get(self._measure(params, before))
        if self.cfg.changes:  # The step that follows takes the memory of these.
            self._before = {path: jnp.copy(x) for path, x in params.items()}
        return self._findings(found, {path: x.size for path, x in params.items()})

    def _all(self, params: Mapping[str, Array], before: Mapping[str, Array] | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path, x in params.items():
            x = x.astype(jnp.float32)
            found[path] = self._measured(x, path)
            if before is not None:
                found[f"{path}/change"] = self._measured(x - before[path].astype(jnp.float32), path)
        return found

    def _measured(self, x: Array, path: str) -> dict[str, Array]:
        finite = jnp.isfinite(x)
        count = jnp.sum(finite, dtype=jnp.uint32)
        low, high = jnp.min(jnp.where(finite, x, jnp.inf)), jnp.max(jnp.where(finite, x, -jnp.inf))
        low, high = jnp.where(count > 0, low, 0.0), jnp.where(count > 0, high, 0.0)
        share = jnp.linspace(0.0, 1.0, self.cfg.bins + 1)
        edges = low * (1 - share) + high * share  # So, the first and the last are what they are called.
        # One edge after the other: each is a comparison and a sum, which every device makes of what it has.
        below = jax.lax.map(lambda edge: jnp.sum(finite & (x < edge), dtype=jnp.uint32), edges[1:-1])
        axes = tuple(range(1, x.ndim)) if path in self._stacked else None
        square = jnp.mean(jnp.square(jnp.where(finite, x, 0.0)), axis=axes)
        left_out = x.size - count
        return {"edges": edges, "below": below, "count": count, "rms": jnp.sqrt(square), "not_finite": left_out}

    def _findings(self, found: Mapping[str, Any], sizes: Mapping[str, int]) -> Findings:
        histograms, rows = dict[str, Histogram](), list[tuple[Any, ...]]()
        changes: dict[str, np.ndarray] = {}
        for path, each in found.items():
            below = np.concatenate([[0], each["below"], [each["count"]]]).astype(np.int64)
            histograms[path] = Histogram(each["edges"].tolist(), np.diff(below).tolist())
        for path, size in sizes.items():
            each, change = found[path], found.get(f"{path}/change")
            rms, relative = float(np.sqrt(np.mean(each["rms"] ** 2))), None
            if change is not None:
                changes[path] = np.atleast_1d(_ratio(change["rms"], each["rms"]))
                relative = float(_ratio(np.sqrt(np.mean(change["rms"] ** 2)), rms))
            rows.append((path, size, rms, float(each["edges"][0]), float(each["edges"][-1]), relative))
        return Findings(
            metrics={"not_finite": float(sum(found[path]["not_finite"] for path in sizes))},
            histograms=histograms,
            tables={"sizes": Table(_COLUMNS, rows)},
            pictures={"changes": _picture(changes)} if changes else {},
        )


def _ratio(change: Any, size: Any) -> Any:
    """Returns change over size; nan of what is all zeros."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(size) > 0, np.asarray(change) / np.asarray(size), np.nan)


def _picture(changes: Mapping[str, np.ndarray]) -> bytes:
    """Returns changes as a picture: a parameter that is in no layer fills its row."""
    width = max(map(len, changes.values()))
    rows = [np.resize(each, width) if len(each) == 1 else _filled(each, width) for each in changes.values()]
    with np.errstate(divide="ignore"):
        logs = np.log10(np.maximum(np.stack(rows), 10.0**_LOW))
    return heat_map(logs, _LOW, _HIGH)


def _filled(values: np.ndarray, width: int) -> np.ndarray:
    return np.concatenate([values, np.full(width - len(values), np.nan)])
