# SPDX-License-Identifier: Apache-2.0
"""How a gang of processes is supervised: what counts as a failure, and how often it is tried again."""

from dovetail.config import ConfigBase, ConfigError


class Supervision(ConfigBase):
    """Times are in seconds."""

    heartbeat: float = 5.0  # A process that says nothing for so long is frozen, or its host is lost.
    hang_factor: float = 20.0  # A step hangs when it takes so many times the longest of late, ...
    hang_least: float = 10.0  # ... and at least so long. The same for evaluations and other phases.
    start_least: float = (
        60.0  # The least before the first step of a gang, where a program may have to be compiled anew.
    )
    start_limit: float = 900.0  # For what was not seen before in all processes: starting, compiling.
    straggler_factor: float = 1.5  # A process is called slow when its own part of a step takes so much longer.
    max_restarts: int = 60  # After failures, within an hour.
    same_step: int = 3  # Failures without a new step in between, before the run ends.
    quarantine_after: int = 3  # Failures of one host in a row, before another one takes its place.
    backoff: float = 1.0  # Before the second try of a step; doubled for each further one.
    backoff_most: float = 60.0
    grace: float = 60.0  # For saving when the run is asked to end.
    rescue: float = 3.0  # For saving when all processes have met an error.

    def check(self) -> None:
        """Raises if a value makes no sense."""
        for name in ("heartbeat", "hang_factor", "hang_least", "start_least", "start_limit", "grace"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"supervision.{name} is {getattr(self, name)}, expected a positive number.")
        for name in ("same_step", "quarantine_after"):
            if getattr(self, name) < 1:
                raise ConfigError(f"supervision.{name} is {getattr(self, name)}, expected at least 1.")
