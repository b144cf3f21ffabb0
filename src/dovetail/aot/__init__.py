# SPDX-License-Identifier: Apache-2.0
"""What can be known of a program before it runs."""

from ._collectives import Collective as Collective
from ._collectives import Groups as Groups
from ._collectives import Sent as Sent
from ._collectives import collectives as collectives
from ._compile import Compilation as Compilation
from ._compile import CompileError as CompileError
from ._compile import compile_for as compile_for
from ._compile import described_devices as described_devices
from ._compile import versions as versions
from ._flops import KernelCall as KernelCall
from ._flops import count_flops as count_flops
from ._flops import count_kernel_flops as count_kernel_flops
from ._flops import inner_programs as inner_programs
from ._flops import kernel_calls as kernel_calls
from ._hlo import Hlo as Hlo
from ._hlo import Instruction as Instruction
from ._memory import Buffer as Buffer
from ._memory import Memory as Memory
from ._operations import Kernel as Kernel
from ._operations import Operations as Operations
from ._operations import Product as Product
from ._operations import operations as operations
from ._paths import config_path as config_path
from ._paths import is_kept as is_kept
from ._schedule import Cost as Cost
from ._schedule import Spent as Spent
from ._schedule import Stretch as Stretch
from ._schedule import copied as copied
from ._schedule import moved_bytes as moved_bytes
from ._schedule import products_of as products_of
from ._schedule import schedule as schedule
from ._training_flops import count_training_flops as count_training_flops
from ._training_flops import training_flops_by_scope as training_flops_by_scope
from ._work import copied_bytes as copied_bytes
from ._work import count_compiled_flops as count_compiled_flops
