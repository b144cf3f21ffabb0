# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: asynchronous, sharded and atomic; summed as they are written, and verified when they are read back."""

from ._checkpointer import Checkpointer as Checkpointer
from ._checkpointer import Restored as Restored
from ._checkpointer import StoredConfig as StoredConfig
from ._checkpointer import load_config as load_config
from ._errors import CheckpointError as CheckpointError
from ._errors import CorruptionError as CorruptionError
from ._fingerprint import shard_sums as shard_sums
from ._keep import KeepBest as KeepBest
from ._lease import LeaseError as LeaseError
from ._leaves import LeafInfo as LeafInfo
from ._leaves import flatten as flatten
from ._place import checkpoints_of as checkpoints_of
from ._place import is_url as is_url
from ._place import note_place as note_place
from ._processes import meet as meet
from ._tiers import Recovered as Recovered
from ._tiers import Tiers as Tiers
