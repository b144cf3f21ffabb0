# SPDX-License-Identifier: Apache-2.0
"""Kernels for one kind of hardware each."""

from ._cudnn import CudnnAttention as CudnnAttention
from ._megablox import MegabloxGroupedMatmul as MegabloxGroupedMatmul
from ._neuron import NeuronAttention as NeuronAttention
from ._splash import SplashAttention as SplashAttention
from ._triton import TritonAttention as TritonAttention
from ._triton_grouped import TritonGroupedMatmul as TritonGroupedMatmul
