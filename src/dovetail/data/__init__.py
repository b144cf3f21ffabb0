# SPDX-License-Identifier: Apache-2.0
"""Input of a trainer: documents from files, tokenised, shuffled, packed and mixed into batches, from any position."""

from ._array_record import ArrayRecord as ArrayRecord
from ._corpora import ShippedCorpus as ShippedCorpus
from ._corpora import ShippedTokenizer as ShippedTokenizer
from ._corpora import corpus_path as corpus_path
from ._dataset import Dataset as Dataset
from ._dataset import TextDataset as TextDataset
from ._errors import DataError as DataError
from ._hugging_face import HuggingFaceTokenizer as HuggingFaceTokenizer
from ._input import Input as Input
from ._input import TextInput as TextInput
from ._iterator import BatchIterator as BatchIterator
from ._iterator import merge_states as merge_states
from ._jsonl import JsonLines as JsonLines
from ._mixture import Mixture as Mixture
from ._numbered import NumberedInput as NumberedInput
from ._packing import FIELDS as FIELDS
from ._packing import BestFitPacker as BestFitPacker
from ._packing import ConcatPacker as ConcatPacker
from ._packing import Packer as Packer
from ._packing import Row as Row
from ._packing import State as State
from ._parquet import Parquet as Parquet
from ._sentence_piece import SentencePieceTokenizer as SentencePieceTokenizer
from ._source import Document as Document
from ._source import FileSource as FileSource
from ._source import Source as Source
from ._spec import Batch as Batch
from ._spec import BatchSpec as BatchSpec
from ._spec import Field as Field
from ._spec import spec_of as spec_of
from ._split import Split as Split
from ._split import source_of as source_of
from ._text import TextFiles as TextFiles
from ._tokenizer import ByteTokenizer as ByteTokenizer
from ._tokenizer import Tokenizer as Tokenizer
