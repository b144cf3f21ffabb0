# SPDX-License-Identifier: Apache-2.0
"""Programs that make training steps when told to. Each is started by its path, in an interpreter of its own."""
