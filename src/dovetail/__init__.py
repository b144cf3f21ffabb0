# SPDX-License-Identifier: Apache-2.0
"""Dovetail trains large models from small parts that fit together without glue.

Import what you need from its packages, for example `dovetail.config`. This one imports nothing, so that a
user of the configs alone does not wait for JAX.
"""

__version__ = "0.1.0"
