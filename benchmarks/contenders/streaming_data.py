# SPDX-License-Identifier: Apache-2.0
"""Reads rows with MosaicML Streaming: in an environment of its own, without dovetail.

It has no packing, so the rows are cut beforehand: `streaming_data.py TOKENS.npy DIR SEQ_LEN ROWS BATCHES` prints rows
per second and the seconds to the first batch.
"""

# pyright: reportMissingImports=false

import shutil
import statistics
import sys
import time
from itertools import islice

import numpy as np
from streaming import MDSWriter, Stream, StreamingDataset
from torch.utils.data import DataLoader


def main() -> None:
    tokens, home, seq_len, rows, batches = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    ids = np.load(tokens)
    with MDSWriter(out=home, columns={"tokens": f"ndarray:uint16:{seq_len}"}) as out:
        for row in ids[: len(ids) // seq_len * seq_len].reshape(-1, seq_len):
            out.write({"tokens": row})
    shutil.copytree(home, f"{home}-again")  # One directory cannot be two parts.
    start = time.perf_counter()
    count = (batches + 1) * rows * 8
    parts = [Stream(local=home, choose=count // 3), Stream(local=f"{home}-again", choose=count - count // 3)]
    dataset = StreamingDataset(streams=parts, shuffle=True, batch_size=rows)
    iterator = iter(DataLoader(dataset, batch_size=rows, collate_fn=_collate))
    next(iterator)
    first = time.perf_counter() - start
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in islice(iterator, batches):
            pass
        times.append(time.perf_counter() - begun)
    print(batches * rows / statistics.median(times), first)


def _collate(some: list[dict[str, np.ndarray]]) -> np.ndarray:
    return np.stack([each["tokens"].astype(np.int32) for each in some])


if __name__ == "__main__":
    main()
