# SPDX-License-Identifier: Apache-2.0
"""From a trained model to an engine."""

from dovetail.train import Trained

from ._engine import Engine
from ._model_device import ModelDevice
from ._serving import Serving


def open_engine(
    trained: Trained,
    serving: Serving | None = None,
    engine: Engine.Config | None = None,
    *,
    draft: Trained | None = None,
) -> Engine:
    """Returns an engine for the model of a run, compiled, and not started yet: `with open_engine(trained) as engine`.

    Args:
        trained: as `load_trained` or `load_initial` give it; it says the mesh and the dtype.
        serving: how much is served at once.
        draft: a smaller model of the same tokens. It guesses `serving.drafts` tokens, which the model then verifies in
            one step; without it, they are what came after the same tokens before. Neither changes an answer.
    """
    device = ModelDevice(serving or Serving(), trained, draft)
    return (engine or Engine.Config()).build(path="engine", device=device)
