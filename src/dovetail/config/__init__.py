# SPDX-License-Identifier: Apache-2.0
"""Typed config trees: values, traversal, modifiers. Standard library only."""

from ._base import ConfigBase as ConfigBase
from ._base import fields_of as fields_of
from ._component import Component as Component
from ._component import Incomplete as Incomplete
from ._component import MissingFieldsError as MissingFieldsError
from ._component import built_configs as built_configs
from ._component import check_complete as check_complete
from ._component import missing_fields as missing_fields
from ._errors import ConfigError as ConfigError
from ._errors import did_you_mean as did_you_mean
from ._function import FunctionConfig as FunctionConfig
from ._function import config_for as config_for
from ._json import from_json as from_json
from ._json import modules_named as modules_named
from ._json import to_json as to_json
from ._modify import Modifier as Modifier
from ._modify import chain as chain
from ._modify import modify as modify
from ._modify import replace_all as replace_all
from ._outline import Outlined as Outlined
from ._outline import outline as outline
from ._override import override as override
from ._override import split_override as split_override
from ._report import Change as Change
from ._report import LeftAlone as LeftAlone
from ._report import Report as Report
from ._text import Diff as Diff
from ._text import Difference as Difference
from ._text import diff as diff
from ._text import to_text as to_text
from ._traverse import find as find
from ._traverse import visit as visit
from ._values import REQUIRED as REQUIRED
