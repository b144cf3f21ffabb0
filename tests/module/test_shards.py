# SPDX-License-Identifier: Apache-2.0
"""`on_shards`: a method on each device's own part, with parameters whole or in parts, equal to a plain call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.module import Module, ModuleError, call, constant, init
from dovetail.parallel import layout_of, parse_mesh

X = jax.random.normal(jax.random.key(1), (4, 6, 8))
DIM, EXPERTS = 8, 4


class Layer(Module):
    """Sums over the experts, so that parts of them have to be added up."""

    class Config(Module.Config):
        total: bool = False

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("weight", (EXPERTS, DIM, DIM), axes=("expert", "embed", "mlp"))
        self.param("scale", (DIM,), axes=("embed",), init=constant(2.0))

    def forward(self, x):
        axes = ("batch", "seq", None)
        out_axes = None if self.cfg.total else axes
        return self.on_shards(self._each, x, in_axes=(axes,), out_axes=out_axes, keep=())

    def _each(self, x):
        y = jnp.einsum("btd,edf->btf", x * self.scale, self.weight)
        self.summary("mean", jnp.mean(y))
        return jnp.sum(jnp.square(y)) if self.cfg.total else y


def run(cfg, mesh):
    model = cfg.build()
    params, layout = init(model, jax.random.key(0)), layout_of(mesh)

    def loss(params, x):
        out, collected = call(model, params, x, layout=layout)
        return jnp.sum(jnp.sqrt(1 + jnp.square(out))), (out, collected.summaries)

    with jax.set_mesh(mesh.on()):
        return jax.device_get(jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, X))


@pytest.mark.parametrize("text", ["data=4", "fsdp=2,seq=2", "fsdp=2,expert=2,tensor=2", "tensor=4"])
@pytest.mark.parametrize("total", [False, True], ids=["parts", "sums"])
def test_parts_give_what_the_whole_gives(text, total):
    cfg = Layer.Config(total=total)
    wanted, found = run(cfg, parse_mesh("")), run(cfg, parse_mesh(text))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=5e-6 * np.max(np.abs(b))), found, wanted)


class Noise(Module):
    """Adds noise on each part, of the module and of a child."""

    class Config(Module.Config):
        remembers: bool = False

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.state("last", ("batch", 6, DIM), axes=("batch", None, None))

    def forward(self, x):
        axes = ("batch", "seq", None)
        before = jax.random.normal(self.rng(), x.shape)
        return before, self.on_shards(self._each, x, in_axes=(axes,), out_axes=axes), self.rng()

    def _each(self, x):
        if self.cfg.remembers and self.stateful:
            self.update("last", x)
        return jax.random.normal(self.rng(), x.shape)


@pytest.mark.parametrize("text", ["", "data=2,seq=2", "data=2,tensor=2"])
def test_each_part_has_random_numbers_of_its_own_and_the_same_ones_again(text):
    mesh, model = parse_mesh(text), Noise.Config().build()

    @jax.jit
    def noise(x):
        before, each, after = call(model, {}, x, layout=layout_of(mesh), rng=jax.random.key(0))[0]
        return before, each, jax.random.normal(after, x.shape)

    with jax.set_mesh(mesh.on()):
        drawn, again = noise(X), noise(X)
    jax.tree.map(np.testing.assert_array_equal, drawn, again)
    numbers = np.concatenate([np.ravel(x) for x in drawn])
    assert len(set(numbers.tolist())) == numbers.size  # Neither from part to part, nor of what is around.


@pytest.mark.parametrize("text", ["", "data=2"])
def test_state_on_parts_is_refused_with_and_without_a_mesh(text):
    mesh, model = parse_mesh(text), Noise.Config(remembers=True).build()
    with jax.set_mesh(mesh.on()), pytest.raises(ModuleError) as e:
        call(model, {}, X, layout=layout_of(mesh), rng=jax.random.key(0), state={})
    assert str(e.value) == (
        "(root) (Noise) uses state of a sequence inside on_shards, where a device has its own part of the\n"
        "  inputs alone. Read it before and pass it in; return what is new, and update the state after."
    )


def test_without_a_mesh_it_is_a_plain_call():
    class Plain(Layer):
        def forward(self, x):
            return self._each(x)

    params = init(Layer.Config().build(), jax.random.key(0))

    def program(kind):
        model = kind.Config().build()
        return str(jax.make_jaxpr(lambda p, x: call(model, p, x)[0])(params, X))

    assert program(Layer) == program(Plain)


def test_a_mesh_that_splits_neither_inputs_nor_parameters_adds_no_region():
    model, layout = Layer.Config().build(), layout_of(parse_mesh("pipeline=2"))
    params = init(model, jax.random.key(0))
    assert "shard_map" not in str(jax.make_jaxpr(lambda p, x: call(model, p, x, layout=layout)[0])(params, X))
