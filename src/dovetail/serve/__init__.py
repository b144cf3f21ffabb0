# SPDX-License-Identifier: Apache-2.0
"""Trained models in use: text from prompts."""

from ._engine import Engine as Engine
from ._engine import Stats as Stats
from ._generate import Sampling as Sampling
from ._generate import generate as generate
from ._generate import sample as sample
from ._grammar import GrammarCompiler as GrammarCompiler
from ._model_device import ModelDevice as ModelDevice
from ._open import open_engine as open_engine
from ._programs import Key as Key
from ._programs import ServedModel as ServedModel
from ._quantised import quantised as quantised
from ._request import Draw as Draw
from ._request import Progress as Progress
from ._request import Request as Request
from ._request import RequestError as RequestError
from ._request import Token as Token
from ._sampler import Sampler as Sampler
from ._serving import Serving as Serving
from ._stream import EngineClosed as EngineClosed
from ._stream import Stream as Stream
from ._text import TextStream as TextStream
from ._writer import Sample as Sample
from ._writer import Writer as Writer
from ._writer import tokenizer_of as tokenizer_of
