# SPDX-License-Identifier: Apache-2.0
"""Reads rows with the indexed dataset of Megatron Core: in an environment of its own, without dovetail.

`megatron_data.py TOKENS.npy LENGTHS.npy DIR SEQ_LEN ROWS BATCHES EOS` writes documents to a .bin and an .idx file,
blends two such data sets, and prints rows per second and the seconds to the first batch: first where positions start
anew with each document, as ours do, then where they are the same for each row. The index of samples is made beforehand,
and found in its cache.
"""

# pyright: reportMissingImports=false

import shutil
import statistics
import sys
import time
import warnings
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: E402


def main() -> None:
    tokens, lengths = np.load(sys.argv[1]), np.load(sys.argv[2])
    home, (seq_len, rows, batches, eos) = sys.argv[3], map(int, sys.argv[4:8])
    builder = IndexedDatasetBuilder(f"{home}-a.bin", dtype=np.uint16)
    for ids in np.split(tokens, np.cumsum(lengths)[:-1]):
        builder.add_document(torch.from_numpy(ids.astype(np.int32)), [len(ids)])
    builder.finalize(f"{home}-a.idx")
    for ending in ("bin", "idx"):
        shutil.copyfile(f"{home}-a.{ending}", f"{home}-b.{ending}")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    for resets in (True, False):
        made = _dataset(home, resets, seq_len, rows * (batches * 5 + 2), eos)
        del made  # It has left its indexes in the cache.
        print(*_rate(home, resets, seq_len, rows, batches, eos))


def _rate(home: str, resets: bool, seq_len: int, rows: int, batches: int, eos: int) -> tuple[float, float]:
    start = time.perf_counter()
    dataset = _dataset(home, resets, seq_len, rows * (batches * 5 + 2), eos)
    iterator = iter(DataLoader(dataset, batch_size=rows))
    next(iterator)
    first = time.perf_counter() - start
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in islice(iterator, batches):
            pass
        times.append(time.perf_counter() - begun)
    return batches * rows / statistics.median(times), first


def _dataset(home: str, resets: bool, seq_len: int, count: int, eos: int) -> Any:
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=seq_len,
        blend=([f"{home}-a", f"{home}-b"], [1.0, 2.0]),
        split="1,0,0",
        path_to_cache=f"{home}-cache",
        tokenizer=SimpleNamespace(vocab_size=4096, eod=eos, pad=-1, unique_identifiers={"class": "ids"}),
        reset_position_ids=resets,
        reset_attention_mask=False,
        eod_mask_loss=resets,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [count, 0, 0], lambda: True, config).build()[0]


if __name__ == "__main__":
    main()
