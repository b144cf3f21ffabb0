# SPDX-License-Identifier: Apache-2.0
"""Training: the step, the loop around it, and those who watch."""

from ._batch import abstract_batch as abstract_batch
from ._batch import batch_shape as batch_shape
from ._batch import largest as largest
from ._evaluator import Evaluated as Evaluated
from ._evaluator import Evaluator as Evaluator
from ._evaluator import Findings as Findings
from ._evaluator import evaluators_of as evaluators_of
from ._evaluator import findings as findings
from ._held_out import HeldOutLoss as HeldOutLoss
from ._initial import InitFrom as InitFrom
from ._meter import measured_peak as measured_peak
from ._observers import JsonLines as JsonLines
from ._observers import Observer as Observer
from ._observers import TensorBoard as TensorBoard
from ._observers import Terminal as Terminal
from ._program import DTYPES as DTYPES
from ._program import Program as Program
from ._record import digest as digest
from ._record import recorded_code as recorded_code
from ._size import Part as Part
from ._size import Size as Size
from ._size import parts_of as parts_of
from ._size import size_of as size_of
from ._step import TrainState as TrainState
from ._step import eval_step as eval_step
from ._step import gradients_of as gradients_of
from ._step import init_state as init_state
from ._step import loss_function as loss_function
from ._step import train_step as train_step
from ._trained import Trained as Trained
from ._trained import load_trained as load_trained
from ._trainer import Trainer as Trainer
from ._trainer import TrainingError as TrainingError
from ._visible import escaped as escaped
from ._visible import visible as visible
