# SPDX-License-Identifier: Apache-2.0
"""Strictly encapsulated modules: the tree, the invocation context, and structure."""

from ._call import call as call
from ._context import Collected as Collected
from ._context import ModuleError as ModuleError
from ._context import Params as Params
from ._context import State as State
from ._context import per_layer as per_layer
from ._layout import Axes as Axes
from ._layout import Layers as Layers
from ._layout import Layout as Layout
from ._lift import Key as Key
from ._lift import Lifted as Lifted
from ._lift import folded as folded
from ._module import Module as Module
from ._objective import Loss as Loss
from ._objective import Objective as Objective
from ._param import Init as Init
from ._param import ParamSpec as ParamSpec
from ._param import Rule as Rule
from ._param import constant as constant
from ._param import normal as normal
from ._param import pseudo_loss as pseudo_loss
from ._param import variance_scaling as variance_scaling
from ._remat import Remat as Remat
from ._structure import Repeat as Repeat
from ._structure import Sequence as Sequence
from ._structure import repeat as repeat
from ._tree import abstract as abstract
from ._tree import describe as describe
from ._tree import init as init
from ._tree import modules as modules
from ._tree import specs as specs
