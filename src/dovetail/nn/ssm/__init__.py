# SPDX-License-Identifier: Apache-2.0
"""State-space layers: mixers whose memory of the past has a fixed size. Import them from `dovetail.nn`."""
