# SPDX-License-Identifier: Apache-2.0
"""Models in the format of Hugging Face: weights in safetensors files."""

from ._header import StoredTensor as StoredTensor
from ._load import PublishedWeights as PublishedWeights
from ._rows import WeightMap as WeightMap
from ._rows import weight_map as weight_map
from ._safetensors import OutTensor as OutTensor
from ._safetensors import TensorDirectory as TensorDirectory
from ._safetensors import read_beside as read_beside
from ._safetensors import write_tensors as write_tensors
