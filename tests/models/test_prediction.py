# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction adds a loss for tokens further ahead, and changes nothing else."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.models import MultiTokenPrediction
from dovetail.module import call, specs
from dovetail.nn import Attention, Block, GatedFeedForward
from support import reference
from support.compare import assert_same
from support.models import lm, random_params
from support.numeric import check

IDS = jnp.array([[1, 2, 3, 4, 5, 6], [6, 7, 8, 9, 10, 0]])
TARGETS = jnp.array([[2, 3, 4, 5, 6, 7], [7, 8, 9, 10, 0, 0]])
WEIGHTS = jnp.array([[1.0, 1.0, 0.0, 1.0, 0.5, 1.0], [1.0, 1.0, 2.0, 0.0, 0.0, 0.0]])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]])
BATCH = {"tokens": IDS, "targets": TARGETS, "weights": WEIGHTS, "segments": SEGMENTS}
BLOCK = Block.Config(mixer=Attention.Config(num_heads=2), ffn=GatedFeedForward.Config(hidden_dim=12))
AHEAD = MultiTokenPrediction.Config(block=BLOCK)
CFG = lm(num_layers=1, predictions=(AHEAD, AHEAD), prediction_weight=0.4, embedding_scale=2.0, z_loss=0.1)


def losses(cfg, rows=slice(None)):
    model = cfg.build()

    def run(params):
        found, collected = call(model, params, {name: x[rows] for name, x in BATCH.items()}, method="loss")
        return (found.sum, found.weight, found.metrics["accuracy"]), collected.losses

    return run


def definition(p):
    """The loss of a token two or three ahead of the last one seen, one token at a time."""
    ids, targets, weights, segments = (np.asarray(x, np.float64) for x in (IDS, TARGETS, WEIGHTS, SEGMENTS))
    ids, targets = ids.astype(int), targets.astype(int)
    scaled = {**p, "embedding": {"table": 2 * p["embedding"]["table"]}}
    places = np.broadcast_to(np.arange(6), (2, 6))
    allowed = (places[:, :, None] >= places[:, None, :]) & (segments[:, :, None] == segments[:, None, :])
    inputs = {"allowed": allowed, "positions": places}
    x = reference.stack(p["stack"], scaled["embedding"]["table"][ids], **inputs)
    hidden = reference.norm(p["norm"], x, "rms")
    logits = reference.linear(p["head"], hidden).reshape(12, -1)
    main = reference.token_loss(logits, targets.ravel(), weights.ravel(), 0.1)
    found, z_loss = {}, main[3]
    for d in (1, 2):
        q = p[f"predictions[{d - 1}]"]
        ahead = np.stack([scaled["embedding"]["table"][np.roll(row, -d)] for row in ids])
        both = [reference.norm(q["embedding_norm"], ahead, "rms"), reference.norm(q["hidden_norm"], hidden, "rms")]
        x = both[0] @ q["merge"]["weight"][0] + both[1] @ q["merge"]["weight"][1]
        hidden = reference.norm(q["norm"], reference.block(q["block"], x, **inputs), "rms")
        logits, total = reference.linear(p["head"], hidden), np.zeros(4)
        for b, t in np.ndindex(2, 6 - d):
            if segments[b, t] == segments[b, t + d]:
                one = logits[b, t][None], [targets[b, t + d]], [weights[b, t + d]]
                total += reference.token_loss(*one, 0.1)
        found[f"predictions[{d - 1}]"] = 0.4 / 2 * total[0] / weights.sum()
        z_loss += 0.4 / 2 * total[3]
    return (*main[:2], (main[2], main[1])), {**found, "z_loss": z_loss / weights.sum()}


def test_the_losses_are_their_definition_with_documents_and_weights():
    check(losses(CFG), definition, random_params(CFG.build()))


def test_it_changes_neither_logits_nor_the_loss_of_the_next_token_nor_other_parameters():
    plain = CFG.set(predictions=())
    params = random_params(CFG.build())
    rest = {name: below for name, below in params.items() if not name.startswith("predictions")}
    assert jax.tree.structure(rest) == jax.tree.structure(random_params(plain.build()))
    with_it, without = jax.jit(losses(CFG))(params), jax.jit(losses(plain))(rest)
    assert_same(with_it[0], without[0])
    assert without[1].keys() == {"z_loss"}
    programs = [str(jax.make_jaxpr(lambda p, m=m: call(m, p, IDS)[0])(rest)) for m in (CFG.build(), plain.build())]
    assert programs[0] == programs[1]


def test_the_losses_add_up_over_any_split_of_the_batch_by_the_weight_of_the_tokens():
    params = random_params(CFG.build())

    def sums(rows):
        (_, weight, _), extra = jax.jit(losses(CFG, rows))(params)
        return {name: value * weight for name, value in extra.items()}

    halves = [sums(slice(i, i + 1)) for i in range(2)]
    assert_same(sums(slice(None)), jax.tree.map(jnp.add, *halves))


def test_without_tokens_that_count_there_is_no_loss():
    model = CFG.build()
    params = random_params(model)
    _, collected = call(model, params, {**BATCH, "weights": 0 * WEIGHTS}, method="loss")
    assert set(map(float, collected.losses.values())) == {0.0}


def test_each_has_a_block_two_norms_before_and_one_after_and_a_map_from_both_inputs():
    spec = specs(CFG.build())["predictions[1]"]
    assert set(spec) == {"embedding_norm", "hidden_norm", "merge", "block", "norm"}
    merge = spec["merge"]["weight"]
    assert (merge.shape, merge.axes, merge.fan_in) == ((2, 8, 8), (None, "embed", "embed"), 16)
