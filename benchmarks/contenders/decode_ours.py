# SPDX-License-Identifier: Apache-2.0
"""Greedy generation as `dovetail generate` does it: prefill and all new tokens in one compiled program."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from _problem import answer_each, problem, prompts
from ours import model_of, params_of

from dovetail.module import specs
from dovetail.serve import Sampling, generate


def main() -> None:
    data, batch, new = problem(), int(sys.argv[2]), int(sys.argv[3])
    model = model_of(data, scanned=False)
    params = params_of(data.weights(), data, specs(model))
    ids = jnp.asarray(prompts(data, batch))
    lengths = jnp.full((batch,), ids.shape[1])
    run = jax.jit(
        lambda params, ids: generate(
            model, params, ids, lengths, key=jax.random.key(0), max_new=new, sampling=Sampling(temperature=0.0)
        )
    )
    answer_each(lambda: {"tokens": np.asarray(run(params, ids)).tolist()}, versions={"jax": jax.__version__})


if __name__ == "__main__":
    main()
