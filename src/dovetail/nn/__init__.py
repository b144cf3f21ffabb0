# SPDX-License-Identifier: Apache-2.0
"""Layers: one family to a file, each behind the interface its users depend on."""

from ._attention import Attention as Attention
from ._attention import Mixer as Mixer
from ._block import Block as Block
from ._block import PreNormBlock as PreNormBlock
from ._dropout import Dropout as Dropout
from ._embedding import Embedding as Embedding
from ._embedding import LearnedPosition as LearnedPosition
from ._embedding import PositionEmbedding as PositionEmbedding
from ._feed_forward import DenseFeedForward as DenseFeedForward
from ._feed_forward import FeedForward as FeedForward
from ._feed_forward import GatedFeedForward as GatedFeedForward
from ._linear import DenseLinear as DenseLinear
from ._linear import Linear as Linear
from ._norm import LayerNorm as LayerNorm
from ._norm import Norm as Norm
from ._norm import RMSNorm as RMSNorm
from ._rotary import NoRotary as NoRotary
from ._rotary import RoPE as RoPE
from ._rotary import Rotary as Rotary
from ._stack import RepeatedBlock as RepeatedBlock
from ._stack import Stack as Stack
