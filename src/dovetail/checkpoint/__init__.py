# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: asynchronous, sharded and atomic (Orbax), verified by fingerprints when they are read back."""

from ._checkpointer import Checkpointer as Checkpointer
from ._checkpointer import Restored as Restored
from ._checkpointer import StoredConfig as StoredConfig
from ._checkpointer import load_config as load_config
from ._errors import CheckpointError as CheckpointError
from ._errors import CorruptionError as CorruptionError
from ._leaves import LeafInfo as LeafInfo
from ._leaves import flatten as flatten
from ._processes import meet as meet
