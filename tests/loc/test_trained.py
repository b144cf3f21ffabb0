# SPDX-License-Identifier: Apache-2.0
"""Training in the harness: what differs between meshes is found."""

import pytest

from dovetail.loc import _trained


@pytest.mark.parametrize(
    "losses, problems",
    [
        ([{"loss": 5.0, "grad_norm": 1.0}, {"loss": 5.0001, "grad_norm": 1.0}], []),
        ([{"loss": 5.0, "grad_norm": 1.0}, {"loss": 5.1, "grad_norm": 1.0}], ["loss is 5.0 on"]),
        ([{"loss": 5.0, "grad_norm": 1.0}, {"loss": 5.0, "grad_norm": float("nan")}], ["grad_norm is 1.0 on"]),
    ],
)
def test_meshes_must_agree_on_loss_and_gradient(losses, problems):
    found = list(_trained.differences(losses))
    assert len(found) == len(problems)
    assert all(text.startswith(start) for text, start in zip(found, problems, strict=True))
