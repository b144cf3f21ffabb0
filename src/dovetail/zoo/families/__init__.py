# SPDX-License-Identifier: Apache-2.0
"""Model families: for each, a function that returns a model's config, and beside it a table of published sizes."""

from ._deepseek_v3 import deepseek_v3 as deepseek_v3
from ._gemma2 import gemma2 as gemma2
from ._gemma3 import gemma3 as gemma3
from ._gpt2 import gpt2 as gpt2
from ._gpt_oss import gpt_oss as gpt_oss
from ._granite_hybrid import granite_hybrid as granite_hybrid
from ._llama import llama as llama
from ._mamba2 import mamba2 as mamba2
from ._mistral import mistral as mistral
from ._mixtral import mixtral as mixtral
from ._olmo2 import olmo2 as olmo2
from ._qwen2 import qwen2 as qwen2
from ._qwen3 import qwen3 as qwen3
from ._qwen3_moe import qwen3_moe as qwen3_moe
