# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that come with the command: side by side with peers, in one run."""

from ._decode import DecodeReport as DecodeReport
from ._decode import DecodeRow as DecodeRow
from ._decode import bench_decode as bench_decode
from ._machine import machine as machine
from ._train import PEERS as PEERS
from ._train import Row as Row
from ._train import TrainReport as TrainReport
from ._train import bench_train as bench_train
from .contenders._problem import Problem as Problem
