# SPDX-License-Identifier: Apache-2.0
"""Pictures as SVG, all of one look: curves, bars, points and blocks. Standard library only."""

from ._bars import Bar as Bar
from ._bars import Part as Part
from ._bars import draw_bar as draw_bar
from ._bars import draw_bars as draw_bars
from ._blocks import BlockBranch as BlockBranch
from ._blocks import BlockLayer as BlockLayer
from ._blocks import Card as Card
from ._blocks import Row as Row
from ._blocks import Section as Section
from ._blocks import Stack as Stack
from ._blocks import blocks_picture as blocks_picture
from ._canvas import SIZE as SIZE
from ._canvas import SMALL as SMALL
from ._canvas import Canvas as Canvas
from ._canvas import Color as Color
from ._curves import WIDTH as WIDTH
from ._curves import Curve as Curve
from ._curves import Panel as Panel
from ._curves import curves_picture as curves_picture
from ._legend import Entry as Entry
from ._legend import draw_legend as draw_legend
from ._legend import line_look as line_look
from ._picture import Picture as Picture
from ._picture import PictureError as PictureError
from ._picture import check_picture_file as check_picture_file
from ._scale import Scale as Scale
from ._scale import scale_of as scale_of
from ._text import TIMES as TIMES
from ._text import marked_up as marked_up
from ._text import number as number
from ._text import printable as printable
from ._text import shortened as shortened
from ._text import width_of as width_of
