# SPDX-License-Identifier: Apache-2.0
"""What can be known of a program before it runs."""

from ._collectives import Collective as Collective
from ._collectives import collectives as collectives
from ._flops import count_flops as count_flops
