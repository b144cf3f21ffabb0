# SPDX-License-Identifier: Apache-2.0
"""Kernels for one kind of hardware each. Import from `dovetail.ops`."""
