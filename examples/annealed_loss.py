# SPDX-License-Identifier: Apache-2.0
"""Annealed auxiliary losses: what keeps experts busy, or logits small, counts less and less as the run goes on.

dovetail train examples/annealed_loss.py:run
"""

from dovetail.optim import LinearSchedule
from dovetail.zoo import recipe


def with_annealed_losses(cfg):
    return cfg.set_in("model.z_loss", 1e-3).set(loss_scales={"*": LinearSchedule.Config(peak=1.0, warmup_steps=0)})


def run():
    return with_annealed_losses(recipe("mixtral-tiny"))
