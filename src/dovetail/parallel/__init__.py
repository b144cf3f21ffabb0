# SPDX-License-Identifier: Apache-2.0
"""Meshes: how logical axes lie on devices, and what runs differently because of it."""

from ._adapt import on_mesh as on_mesh
from ._attention import GatheredAttention as GatheredAttention
from ._exchange import exchange as exchange
from ._fit import BatchShape as BatchShape
from ._fit import check_fit as check_fit
from ._fit import divisors as divisors
from ._fit import factorisations as factorisations
from ._fit import fits as fits
from ._fit import flat_specs as flat_specs
from ._layout import MeshLayout as MeshLayout
from ._layout import decoding_layout as decoding_layout
from ._layout import layout_of as layout_of
from ._mesh import Mesh as Mesh
from ._mesh import parse_mesh as parse_mesh
from ._mesh import shrink as shrink
from ._one_forward_one_backward import one_forward_one_backward as one_forward_one_backward
from ._processes import all_values as all_values
from ._processes import is_first as is_first
from ._processes import together as together
from ._ring import RingAttention as RingAttention
from ._rules import MESH_AXES as MESH_AXES
from ._rules import Rules as Rules
from ._table import Placed as Placed
from ._table import placed as placed
from ._table import placement_text as placement_text
