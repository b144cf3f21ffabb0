# SPDX-License-Identifier: Apache-2.0
"""Recipes by name. Families are in `dovetail.zoo.families`, recipes in `dovetail.zoo.recipes`."""

from ._catalogue import RECIPES as RECIPES
from ._catalogue import check_name as check_name
from ._catalogue import model as model
from ._catalogue import recipe as recipe
from ._published_name import check_published as check_published
from ._published_name import check_target as check_target
from ._published_name import is_published_name as is_published_name
