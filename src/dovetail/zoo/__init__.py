# SPDX-License-Identifier: Apache-2.0
"""Recipes by name. Families are in `dovetail.zoo.families`, recipes in `dovetail.zoo.recipes`."""

from ._catalogue import RECIPES as RECIPES
from ._catalogue import check_name as check_name
from ._catalogue import model as model
from ._catalogue import recipe as recipe
