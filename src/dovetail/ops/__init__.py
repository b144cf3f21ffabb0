# SPDX-License-Identifier: Apache-2.0
"""Pure maths: arrays in, arrays out."""

from ._attention import AttentionKernel as AttentionKernel
from ._attention import BlockwiseAttention as BlockwiseAttention
from ._attention import ReferenceAttention as ReferenceAttention
from ._cross_entropy import TokenLoss as TokenLoss
from ._cross_entropy import chunked_token_loss as chunked_token_loss
from ._cross_entropy import token_loss as token_loss
from ._masks import EMPTY as EMPTY
from ._masks import And as And
from ._masks import Causal as Causal
from ._masks import Full as Full
from ._masks import Mask as Mask
from ._masks import Or as Or
from ._masks import Prefix as Prefix
from ._masks import SameSegment as SameSegment
from ._masks import SlidingWindow as SlidingWindow
from ._masks import Tokens as Tokens
from ._masks import Written as Written
from ._norms import layer_norm as layer_norm
from ._norms import rms_norm as rms_norm
from ._rope import rotary_frequencies as rotary_frequencies
from ._rope import rotate as rotate
