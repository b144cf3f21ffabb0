# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: a router, experts, and the way from tokens to experts and back. Import from `dovetail.nn`."""
