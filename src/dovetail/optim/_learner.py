# SPDX-License-Identifier: Apache-2.0
"""`Learner`: from gradients to new parameters, as a pure function of arrays."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.module import ParamSpec

from ._checks import child_path, expect, where
from ._ema import EMA
from ._group import Group, Treatment, table, treatments
from ._groups import by_path, frozen_except
from ._norm import clip_by_norm, global_norm
from ._optimizer import AdamW, Optimizer
from ._precision import widen
from ._schedule import Schedule
from ._skip import Skip
from ._weight_decay import WeightDecay


class LearnerState(NamedTuple):
    """What a learner keeps between steps: arrays in tuples and dicts, for any checkpointer to save."""

    num_updates: Array  # The step of the schedule.
    num_skipped: Array  # Steps without an update.
    optimizer: Any  # The state of optax.
    ema: Any  # The mean of the parameters, in float32 and ready to use; () without EMA.
    skip: Any  # The record of gradient norms; () where no spikes are skipped.


class Learner(Component):
    """Clips, optimizes, decays, projects, and averages; for parameters with the specs it is built with.

    `cfg.build(specs=specs(model), steps=...)`, then `init` once and `update` in each step. Both are pure: they can be
    jitted, work on abstract shapes and on arrays sharded in any way, and `update` returns parameters and state with the
    shapes and dtypes it got, so that both can be donated.

    A frozen parameter, one whose module says so or that is not `trainable`, stays as it is: it has no state here, does
    not decay, and counts in no norm of gradients. Of one whose module says so there is no average either.
    """

    class Config(Component.Config):
        optimizer: Optimizer.Config = AdamW.Config()
        schedule: Schedule.Config = REQUIRED
        clip_norm: float | None = 1.0  # The largest norm of all gradients together.
        weight_decay: WeightDecay.Config | None = WeightDecay.Config()
        ema: EMA.Config | None = None
        skip: Skip.Config | None = Skip.Config()
        groups: tuple[Group, ...] = ()  # Parameters with a rate, a decay or a projection of their own.
        trainable: tuple[str, ...] = ("*",)  # Paths or patterns of parameters that change; the others are frozen.
        renamed: ClassVar[Mapping[str, str]] = {"trained": "trainable"}
        report_update_norm: bool = False  # In the metrics; takes another pass over all of them.

    def __init__(
        self, cfg: Config, *, specs: Any, steps: int | None = None, branches: bool = True, **kwargs: Any
    ) -> None:
        """Builds it for parameters with these specs.

        Args:
            steps: those of the run, with which a schedule ends that says nothing else.
            branches: whether a step that may be skipped is a branch of the program, which is faster on CPUs. The
                compilers for accelerators would copy the whole state to leave it; without, they choose between two
                numbers where they compute one of them.
        """
        super().__init__(cfg, **kwargs)
        self._branches = branches
        expect(self, "clip_norm", cfg.clip_norm is None or 0 < cfg.clip_norm < math.inf, "a positive number, or None")
        self.schedule: Schedule = self._child("schedule", steps=steps)
        self.ema: EMA | None = self._child("ema")
        self.skip: Skip | None = self._child("skip")
        expect(self, "trainable", bool(cfg.trainable), "at least one path or pattern")
        self._declared = specs
        self._specs = frozen_except(cfg.trainable, specs, f"{where(self)}: trainable")
        learned = self._learned(specs)
        optimizer: Optimizer = self._child("optimizer")
        self._transformation = optimizer.transformation(learned)
        decay: WeightDecay | None = self._child("weight_decay")
        decays = decay.rates(learned) if decay else jax.tree.map(lambda _: 0.0, learned)
        self._treatments = treatments(cfg.groups, learned, optimizer.rates(learned), decays, self._path or "learner")

    @property
    def trainable(self) -> Any:
        """A tree like the parameters, of booleans: whether a parameter is trained, or stays as it is."""
        return jax.tree.map(lambda spec: not spec.frozen, self._specs)

    def __str__(self) -> str:
        """Which group each parameter is in, its rate relative to the schedule, its decay and its projection."""
        return table(self._specs, self._treatments)

    def _child(self, field: str, **kwargs: Any) -> Any:
        cfg = getattr(self.cfg, field)
        return cfg and cfg.build(path=child_path(self, field), **kwargs)

    def init(self, params: Any) -> LearnerState:
        """Returns the state before the first step."""
        self._check(params)
        return LearnerState(
            num_updates=jnp.zeros((), jnp.int32),
            num_skipped=jnp.zeros((), jnp.int32),
            optimizer=self._transformation.init(self._learned(params)),
            ema=self.ema.init(self._averaged(params)) if self.ema else (),
            skip=self.skip.init() if self.skip else (),
        )

    def update(
        self,
        params: Any,
        grads: Any,
        state: LearnerState,
        *,
        loss: Array | None = None,
        accepts: Callable[[Array], Array] | None = None,
    ) -> tuple[Any, LearnerState, dict[str, Array]]:
        """Returns new parameters, new state and metrics.

        A skipped step changes nothing but the count of skipped steps and the record of `Skip`.

        Args:
            loss: if given, it has to be finite for the step not to be skipped.
            accepts: if given, it says of the norm of the gradients whether the step may be accepted at all.

        Metrics: `learning_rate`; `grad_norm`, before clipping; `param_norm`, after the update; `skipped`, the number of
        steps skipped so far; if asked for, `update_norm`, before projections, zero in a skipped step.
        """
        wide, grads = widen((params, grads))
        learned, slopes = self._learned(wide), self._learned(grads)
        grad_norm = global_norm(slopes)
        accepted, skip = self._accepts(state, grad_norm, loss)
        if accepts is not None:
            accepted &= accepts(grad_norm)
        may_skip = self.skip is not None or accepts is not None
        rate = self.schedule(state.num_updates)

        def change() -> tuple[Any, ...]:
            clip = self.cfg.clip_norm
            clipped = slopes if clip is None else clip_by_norm(slopes, grad_norm, clip)
            directions, optimizer = self._transformation.update(clipped, state.optimizer, learned)
            updates = jax.tree.map(lambda *args: _scaled(rate, *args), directions, learned, self._treatments)
            new = jax.tree.map(_changed, self._specs, wide, updates, self._treatments)
            new = jax.tree.map(lambda after, before: after.astype(before.dtype), new, params)
            count = state.num_updates + 1
            ema = self.ema.update(state.ema, self._averaged(new), count) if self.ema else ()
            norms = {"update_norm": global_norm(updates)} if self.cfg.report_update_norm else {}
            return new, count, optimizer, ema, norms

        def stay() -> tuple[Any, ...]:
            norms = {"update_norm": jnp.zeros(())} if self.cfg.report_update_norm else {}
            return params, state.num_updates, state.optimizer, state.ema, norms

        new, count, optimizer, ema, norms = self._either(accepted, change, stay) if may_skip else change()
        skipped = state.num_skipped + (~accepted).astype(jnp.int32)
        metrics = {
            "learning_rate": rate,
            "grad_norm": grad_norm,
            "param_norm": global_norm(new),
            "skipped": skipped,
            **norms,
        }
        return new, LearnerState(count, skipped, optimizer, ema, skip), metrics

    def like_params(self, params: Any, values: Any, default: Any) -> LearnerState:
        """Returns a tree like the state, with the entry of `values` for each array that is kept for a parameter.

        Everything else, such as counts and factored moments, gets `default`. This is how the state is sharded like the
        parameters: `learner.like_params(params, param_shardings, replicated)`.

        Args:
            params: arrays, or their shapes.
            values: a tree like `params`.
        """
        leaves, structure = jax.tree_util.tree_flatten_with_path(params)
        known = {
            (keys, leaf.shape): value
            for (keys, leaf), value in zip(leaves, structure.flatten_up_to(values), strict=True)
        }

        def pick(keys: tuple[Any, ...], leaf: Any) -> Any:
            ends = ((keys[i:], leaf.shape) for i in range(len(keys)))
            return next((known[end] for end in ends if end in known), default)

        return jax.tree_util.tree_map_with_path(pick, jax.eval_shape(self.init, params))

    def _learned(self, tree: Any) -> Any:
        """Returns a tree like the parameters without those that are frozen."""
        return jax.tree.map(lambda spec, x: optax.MaskedNode() if spec.frozen else x, self._specs, tree)

    def _either(self, accepted: Array, change: Callable[[], Any], stay: Callable[[], Any]) -> Any:
        """Returns what `change` returns if a step is accepted, else what `stay` returns."""
        if self._branches:
            return jax.lax.cond(accepted, change, stay)
        return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), change(), stay())

    def _averaged(self, tree: Any) -> Any:
        """Returns a tree like the parameters without those that never change."""
        return jax.tree.map(lambda spec, x: optax.MaskedNode() if spec.frozen else x, self._declared, tree)

    def published(self, params: Any, state: LearnerState) -> Any:
        """Returns the parameters to evaluate and to use: their average, where there is one."""
        if self.ema is None:
            return params
        return jax.tree.map(
            lambda spec, x, mean: x if spec.frozen else mean,
            self._declared,
            params,
            state.ema,
        )

    def _accepts(self, state: LearnerState, norm: Array, loss: Array | None) -> tuple[Array, Any]:
        return self.skip.step(state.skip, norm, loss) if self.skip else (jnp.array(True), ())

    def _check(self, params: Any) -> None:
        """Raises if the parameters are not those that the learner was built for."""
        got = {path: tuple(leaf.shape) for path, leaf in by_path(params).items()}
        want = {path: spec.shape for path, spec in by_path(self._specs).items()}
        wrong = [path for path in {**want, **got} if got.get(path) != want.get(path)]
        if wrong:
            lines = [f"\n  {path}: {got.get(path, 'missing')}, specs: {want.get(path, 'missing')}" for path in wrong]
            more = f"\n  ... and {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise ConfigError(
                f"{where(self)}: the parameters differ from the specs it was built with:{''.join(lines[:10])}{more}"
            )


def _changed(spec: ParamSpec, value: Array, update: Any, how: Any) -> Array:
    """Returns the next value of a parameter; there are no update and treatment for a frozen one."""
    if spec.frozen:
        return value
    return how.project(value + update) if how.project else value + update


def _scaled(rate: Array, direction: Array, param: Array, how: Treatment) -> Array:
    """Returns the update: minus the learning rate times direction and decay."""
    rate = rate.astype(param.dtype)
    if not (isinstance(how.rate, float) and how.rate == 1.0):
        rate = rate * jnp.asarray(how.rate, param.dtype)
    return -rate * (direction + how.decay * param if how.decay else direction)
