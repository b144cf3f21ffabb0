# SPDX-License-Identifier: Apache-2.0
"""Specs, initial values and the printed tree: all derived from the declarations, independent of order and layout."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail.config import REQUIRED
from dovetail.module import Module, ModuleError, ParamSpec, abstract, call, describe, init, specs
from dovetail.module._param import fold_path
from support.loops import Repeat
from support.transformer import DenseFeedForward, Linear, decoder

KEY = jax.random.key(0)


class AB(Module):
    class Config(Module.Config):
        a: Module.Config = REQUIRED
        b: Module.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.a = self.child("a", cfg.a)
        self.b = self.child("b", cfg.b)


class BA(Module):
    class Config(Module.Config):
        b: Module.Config = REQUIRED
        new: Module.Config = Linear.Config(in_dim=2, out_dim=2)
        a: Module.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.new = self.child("new", cfg.new)
        self.b = self.child("b", cfg.b)
        self.a = self.child("a", cfg.a)


class Many(Module):
    class Config(Module.Config):
        linears: dict[str, Module.Config] = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.linears = {name: self.child(f"linears.{name}", linear) for name, linear in cfg.linears.items()}


def weight_of(model, shape, dtype=jnp.float32):
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract(model))
    params["layer"]["weight"] = jnp.zeros(shape, dtype)
    return params


@pytest.mark.parametrize(
    "shape, dtype, found",
    [
        ((3, 6, 4), jnp.float32, "float32[3, 6, 4]"),
        ((4, 6), jnp.float32, "float32[4, 6]"),
        ((2, 4, 6), jnp.float32, "float32[2, 4, 6]"),
        ((3, 4, 6), jnp.int8, "int8[3, 4, 6]"),
    ],
)
def test_a_parameter_of_another_shape_or_kind_than_declared_is_named_with_both(shape, dtype, found):
    model = Repeat.Config(layer=Linear.Config(in_dim=4, out_dim=6), num_repeats=3).build(path="stack")
    with pytest.raises(ModuleError) as e:
        call(model, weight_of(model, shape, dtype), np.zeros((1, 4), np.float32))
    assert str(e.value) == f"stack.layer.weight: the array is {found}, the module declares float32[3, 4, 6]."


def test_a_parameter_may_be_narrower_than_declared():
    model = Repeat.Config(layer=Linear.Config(in_dim=4, out_dim=4), num_repeats=3).build()
    out, _ = call(model, weight_of(model, (3, 4, 4), jnp.bfloat16), jnp.zeros((1, 4), jnp.bfloat16))
    assert out.dtype == jnp.bfloat16


def test_initial_values_do_not_depend_on_siblings_or_their_order():
    children = {"a": Linear.Config(in_dim=3, out_dim=4), "b": DenseFeedForward.Config(dim=3, hidden_dim=5)}
    one, other = init(AB.Config(**children).build(), KEY), init(BA.Config(**children).build(), KEY)
    assert list(one) == ["a", "b"]
    assert list(other) == ["new", "b", "a"]
    jax.tree.map(np.testing.assert_array_equal, one, {name: other[name] for name in one})


def test_parameters_of_one_shape_at_different_paths_differ():
    linear = Linear.Config(in_dim=4, out_dim=4)
    params = init(AB.Config(a=linear, b=linear).build(), KEY)
    assert not np.allclose(params["a"]["weight"], params["b"]["weight"])


def test_parameters_that_are_filled_together_have_the_values_that_each_has_alone():
    model = decoder().build()
    tree, params = specs(model), jax.jit(lambda key: init(model, key))(KEY)
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    for keys, spec in leaves:
        path = ".".join(key.key for key in keys)
        value = params
        for key in keys:
            value = value[key.key]
        alone = spec.make(fold_path(KEY, path))
        np.testing.assert_allclose(value, alone, rtol=1e-5, err_msg=path)  # Programs round differently.


def test_the_program_has_one_draw_for_all_parameters_that_are_alike():
    def draws(count):
        linears: dict[str, Module.Config] = {f"l{i}": Linear.Config(in_dim=4, out_dim=4 + i % 2) for i in range(count)}
        model = Many.Config(linears=linears).build()
        return str(jax.make_jaxpr(lambda key: init(model, key))(KEY)).count("random_bits")

    assert draws(2) == draws(12) == 2


def test_specs_abstract_and_initial_values_agree():
    model = decoder().build()
    params = init(model, KEY)
    assert jax.eval_shape(lambda: init(model, KEY)) == abstract(model)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(
        lambda s: (s.shape, s.dtype), specs(model), is_leaf=lambda s: hasattr(s, "axes")
    )


def sharded_init(model, key):
    """Makes the parameters inside jit, split over all devices where a dimension allows."""
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def sharding(leaf):
        dim = next((i for i, n in enumerate(leaf.shape) if n % len(jax.devices()) == 0), None)
        names = ["x" if i == dim else None for i in range(len(leaf.shape))]
        return NamedSharding(mesh, PartitionSpec(*names))

    return jax.jit(lambda k: init(model, k), out_shardings=jax.tree.map(sharding, abstract(model)))(key)


def test_initial_values_do_not_depend_on_the_mesh():
    model = decoder(num_layers=2, dim=16, hidden_dim=32).build()
    sharded = sharded_init(model, KEY)
    assert len(sharded["embedding"].sharding.device_set) == 8
    alone = jax.jit(lambda k: init(model, k))(KEY)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), sharded, alone)


WORKER = """
import hashlib, json, sys
import jax
port, count, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
jax.config.update("jax_num_cpu_devices", 4 // count)
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, count, rank, coordinator_bind_address=address, initialization_timeout=60)
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from support.transformer import decoder
from test_tree import sharded_init
model = decoder(num_layers=2, dim=16, hidden_dim=32).build()
params = sharded_init(model, jax.random.key(0))
assert jax.process_count() == count and len(jax.devices()) == 4
leaves = [np.asarray(process_allgather(leaf, tiled=True)) for leaf in jax.tree.leaves(params)]
print(json.dumps([hashlib.sha256(leaf.tobytes()).hexdigest() for leaf in leaves]))
"""


def digests(num_processes):
    """Runs WORKER in so many processes, with four devices in all; returns what each printed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    here = Path(__file__).parent
    env = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    env["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent)])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, port, str(num_processes), str(rank)],
            env=env,
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for rank in range(num_processes)
    ]
    results = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * num_processes, results
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in results]


def test_initial_values_do_not_depend_on_the_number_of_processes():
    one, (two_a, two_b) = digests(1)[0], digests(2)
    assert one == two_a == two_b


def test_a_module_tree_prints_itself():
    model = decoder(num_layers=2, dim=4, hidden_dim=8).build()
    assert str(model) == describe(model)
    assert (
        f"\n{model}\n"
        == """
path                         class             parameter  shape      axes                  count  bytes
(root)                       Decoder           embedding  (32, 4)    vocab, embed            128    512
stack                        Repeat
stack.layer                  Block
stack.layer.norm1            RMSNorm           scale      (2, 4)     layers, embed             8     32
stack.layer.attention        Attention
stack.layer.attention.query  Linear            weight     (2, 4, 4)  layers, embed, heads     32    128
stack.layer.attention.key    Linear            weight     (2, 4, 4)  layers, embed, heads     32    128
stack.layer.attention.value  Linear            weight     (2, 4, 4)  layers, embed, heads     32    128
stack.layer.attention.out    Linear            weight     (2, 4, 4)  layers, heads, embed     32    128
stack.layer.norm2            RMSNorm           scale      (2, 4)     layers, embed             8     32
stack.layer.ffn              DenseFeedForward
stack.layer.ffn.up           Linear            weight     (2, 4, 8)  layers, embed, mlp       64    256
stack.layer.ffn.down         Linear            weight     (2, 8, 4)  layers, mlp, embed       64    256
norm                         RMSNorm           scale      (4,)       embed                     4     16
total: 404 parameters, 1,616 bytes
"""
    )
    assert repr(model.stack) == "stack (Repeat)"


def test_what_is_frozen_is_marked():
    class Judge(Module):
        class Config(Module.Config):
            critic: Linear.Config = Linear.Config(in_dim=2, out_dim=1)

        def __init__(self, cfg, **kwargs):
            super().__init__(cfg, **kwargs)
            self.critic = self.child("critic", cfg.critic, frozen=True)

    assert "Linear  weight (frozen)  (2, 1)" in describe(Judge.Config().build())
