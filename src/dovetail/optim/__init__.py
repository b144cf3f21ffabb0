# SPDX-License-Identifier: Apache-2.0
"""The learner: from gradients to new parameters. Optimizers (optax), schedules, accumulation, clipping, decay, EMA."""

from ._accumulate import LossFn as LossFn
from ._accumulate import Mean as Mean
from ._accumulate import accumulate as accumulate
from ._accumulate import value_and_grad as value_and_grad
from ._adafactor import Adafactor as Adafactor
from ._ema import EMA as EMA
from ._group import Group as Group
from ._group import Projection as Projection
from ._group import unit_norm as unit_norm
from ._groups import by_path as by_path
from ._groups import is_hidden_matrix as is_hidden_matrix
from ._groups import is_matrix as is_matrix
from ._groups import matching as matching
from ._learner import Learner as Learner
from ._learner import LearnerState as LearnerState
from ._muon import Muon as Muon
from ._norm import clip_by_norm as clip_by_norm
from ._norm import global_norm as global_norm
from ._optimizer import SGD as SGD
from ._optimizer import AdamW as AdamW
from ._optimizer import FromOptax as FromOptax
from ._optimizer import Lion as Lion
from ._optimizer import Optimizer as Optimizer
from ._schedule import ConstantSchedule as ConstantSchedule
from ._schedule import CosineSchedule as CosineSchedule
from ._schedule import InverseSqrtSchedule as InverseSqrtSchedule
from ._schedule import LinearSchedule as LinearSchedule
from ._schedule import Schedule as Schedule
from ._schedule import WSDSchedule as WSDSchedule
from ._skip import Skip as Skip
from ._skip import SkipState as SkipState
from ._weight_decay import WeightDecay as WeightDecay
