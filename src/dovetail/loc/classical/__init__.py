# SPDX-License-Identifier: Apache-2.0
"""Two classical designs of a model builder, small but working, so that the meter can be held to them."""
