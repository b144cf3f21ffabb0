# SPDX-License-Identifier: Apache-2.0
"""`dovetail show RECIPE --mesh ...`: each parameter on a mesh."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.train import Trainer


def show_mesh(cfg: "Trainer.Config", as_json: bool) -> int:
    """Prints what splits each parameter, and how much of it a device holds; raises if the mesh cannot work."""
    from dovetail.module import specs
    from dovetail.parallel import check_fit, placed, placement_text
    from dovetail.train import batch_shape

    tree = specs(cfg.model.build(path="model"))
    check_fit(cfg.mesh, tree, batch_shape(cfg.input.batch_specs(), cfg.num_microbatches))
    rows = placed(cfg.mesh, tree)
    if as_json:
        total = sum(row.bytes_per_device for row in rows)
        found = {"mesh": cfg.mesh.sizes, "bytes_per_device": total, "parameters": [row._asdict() for row in rows]}
        print(json.dumps(found, indent=2))
    else:
        print(f"mesh: {cfg.mesh.text()}, {cfg.mesh.num_devices} devices\n{placement_text(rows)}")
    return 0
