# SPDX-License-Identifier: Apache-2.0
"""From a recipe and hardware to the program that would run there: mesh rules, and what the real compilers say."""

from ._compiled import compiled as compiled
from ._estimate import Estimate as Estimate
from ._estimate import estimate as estimate
from ._estimate import row_activations as row_activations
from ._measured import Measured as Measured
from ._measured import Stated as Stated
from ._on_hardware import MESH_RULES as MESH_RULES
from ._on_hardware import on_hardware as on_hardware
from ._predict import Prediction as Prediction
from ._predict import predict as predict
from ._predicted import predicted as predicted
from ._report import Report as Report
from ._report import compile_lowered as compile_lowered
from ._report import compile_step as compile_step
from ._report import lower_step as lower_step
from ._report import report_on as report_on
from ._rules import Fitted as Fitted
from ._serving import ServingReport as ServingReport
from ._serving import ServingStep as ServingStep
from ._serving import compiled_serving as compiled_serving
from ._serving import serving_mesh as serving_mesh
from ._timed import Timed as Timed
from ._timed import compiled_parts as compiled_parts
