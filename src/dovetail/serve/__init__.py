# SPDX-License-Identifier: Apache-2.0
"""Trained models in use: text from prompts."""

from ._generate import Sampling as Sampling
from ._generate import generate as generate
from ._generate import sample as sample
from ._sampler import Sampler as Sampler
from ._writer import Sample as Sample
from ._writer import Writer as Writer
from ._writer import tokenizer_of as tokenizer_of
