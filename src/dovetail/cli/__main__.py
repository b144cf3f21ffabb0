# SPDX-License-Identifier: Apache-2.0
"""`python -m dovetail.cli`, the same as `dovetail`."""

import sys

from . import main

sys.exit(main())
