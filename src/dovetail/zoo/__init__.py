# SPDX-License-Identifier: Apache-2.0
"""Model families as data."""

from ._families import gpt2 as gpt2
from ._families import llama as llama
