# SPDX-License-Identifier: Apache-2.0
"""LoC-complexity: how many lines of other code a feature costs, and the checks that keep it at none.

Import from the modules below; re-exporting `encapsulation` here would make `python -m` load it twice.
"""
