# SPDX-License-Identifier: Apache-2.0
"""`Kubectl`: asks a Kubernetes cluster through its command line. What goes wrong is one clear error."""

from collections.abc import Iterator
from typing import Any

from dovetail.config import ConfigError

from ._command import Command, quoted

_SECONDS = 600.0  # For an answer: what is deleted may save first.

# What kubectl says, in small letters: what is wrong, and what to do about it. The first that fits.
_MEANINGS = (
    (("forbidden", "cannot create", "cannot get"), "you may not do this there", "Ask who runs the cluster for a role"),
    (("unauthorized", "must be logged in", "credentials"), "you are not logged in", "Log in to the cluster again"),
    (
        ("no context exists", "context was not found", 'error: context "', "current-context is not set"),
        "there is no such cluster",
        "Say which, as in launch.context=NAME; `kubectl config get-contexts` lists them",
    ),
    (("localhost:8080",), "there is no cluster that kubectl knows", "Log in to one"),
    (
        (
            "connection refused",
            "connection to the server",
            "no such host",
            "unable to connect",
            "i/o timeout",
            "couldn't get current server",
        ),
        "the cluster cannot be reached",
        "Check launch.context, and the network",
    ),
)
_NO_KIND = ("no matches for kind", "doesn't have a resource type", "ensure crds are installed")


class NotThereError(ConfigError):
    """What was asked for is not in the cluster."""


class NoSuchKindError(ConfigError):
    """The cluster does not know a kind of object: JobSet or Kueue is not installed."""


class Kubectl:
    """The command line of a cluster, for one namespace."""

    def __init__(self, namespace: str, context: str | None = None) -> None:
        command = ["kubectl", "--namespace", namespace]
        command += ["--context", context] if context is not None else []
        self._command = Command(
            command, install="Install it, and log in to the cluster.", error=_error, seconds=_SECONDS
        )

    def run(self, *arguments: str, given: str | None = None) -> str:
        """Returns what it prints. `given` is what it reads: manifests, which may hold a secret."""
        return self._command.run(*arguments, given=given)

    def get(self, *arguments: str) -> Any:
        """Returns what is in the cluster."""
        return self._command.json("get", *arguments, "--output", "json")

    def lines(self, *arguments: str) -> Iterator[str]:
        """Yields what it prints, while it runs."""
        return self._command.lines(*arguments)


def _error(what: str, said: str) -> ConfigError:
    low, says = said.lower(), quoted(said)
    if "error from server (notfound)" in low:
        return NotThereError(f"{what}: it is not there.\n{says}")
    if any(
        sign in low for sign in ("no matches for kind", "doesn't have a resource type", "ensure crds are installed")
    ):
        advice = "Have it installed, or launch without a queue: launch.queue=None"
        return NoSuchKindError(f"{what}: the cluster lacks JobSet or Kueue.\n  {advice}.\n{says}")
    for signs, meaning, advice in _MEANINGS:
        if any(sign in low for sign in signs):
            return ConfigError(f"{what}: {meaning}.\n  {advice}.\n{says}")
    return ConfigError(f"{what}: the cluster refuses.\n{says}")
