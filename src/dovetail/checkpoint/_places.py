# SPDX-License-Identifier: Apache-2.0
"""Where parts are kept: in the memory of hosts, held by their agents, and on a disk of each host."""

import abc
import contextlib
import hashlib
import json
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from dovetail.blobs import MEMORY, SLOT, SPARES, TOKEN, BlobError, Client, Directory, Server, put_pieces
from dovetail.config import ConfigError
from dovetail.parallel import all_values

_SHOWN = 4


class Place(NamedTuple):
    """One host, as all processes know it."""

    host: str
    client: Client


class Places(abc.ABC):
    """A tier: where this process puts its parts, and where those of all can be had."""

    what: str  # As in "the memory of host 3".

    def __init__(self, every: int) -> None:
        self.every = every  # Steps from one keep to the next.

    @abc.abstractmethod
    def put(self, blobs: Mapping[str, bytes | memoryview]) -> list[str]:
        """Keeps blobs of this process, in their order; returns what went wrong, a line for each place."""

    @abc.abstractmethod
    def drop(self, names: Iterable[str]) -> None:
        """Forgets blobs of this process."""

    @abc.abstractmethod
    def drop_all(self, chosen: Callable[[str], bool]) -> None:
        """Forgets blobs of any process; all processes together look through all places."""

    @abc.abstractmethod
    def opened(self) -> contextlib.AbstractContextManager[Sequence[Place]]:
        """Yields all places, the same in all processes, which have to come here together."""

    def of(self, hosts: Iterable[str]) -> str:
        """Says where something is from."""
        names = sorted(set(hosts), key=lambda name: (len(name), name))
        if len(names) > _SHOWN:
            return f"{self.what} of {len(names):,} hosts"
        listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
        return f"{self.what} of host{'s' if len(names) > 1 else ''} {listed}"


class HostMemory(Places):
    """The memory of hosts. What a process keeps is on its own host and on those of the processes after it."""

    what = "the memory"

    def __init__(self, every: int, copies: int, environment: Mapping[str, str]) -> None:
        super().__init__(every)
        token = environment[TOKEN]
        gang: list[tuple[str, str]] = [tuple(each) for each in all_values([environment[SLOT], environment[MEMORY]])]
        spares: list[tuple[str, str]] = sorted(json.loads(environment.get(SPARES, "{}")).items())
        clients = {host: Client(address, token) for host, address in [*gang, *spares]}
        self._all = [Place(host, client) for host, client in clients.items()]
        self._mine = [self._all[each] for each in targets([p.client.address for p in self._all], _rank(), copies)]
        # Each process looks after some of the hosts: those without a process have to be looked after as well.
        self._share = self._all[_rank() :: jax.process_count()]
        self.copies = len(self._mine)  # As many as there are hosts for.
        self.missing = copies - self.copies

    def put(self, blobs: Mapping[str, bytes | memoryview]) -> list[str]:
        def put_all(client: Client) -> None:
            for name, data in blobs.items():
                client.put(name, [data])

        return [text for place in self._mine if (text := _tried(place, put_all))]

    def drop(self, names: Iterable[str]) -> None:
        gone = list(names)
        for place in self._mine:
            _tried(place, lambda client: client.drop(gone))

    def drop_all(self, chosen: Callable[[str], bool]) -> None:
        for place in self._share:
            _tried(place, lambda client: client.drop([name for name in client.sizes() if chosen(name)]))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Sequence[Place]]:
        yield self._all


class LocalDisk(Places):
    """A directory on a disk of each host, of which no other host knows. Processes read it out to each other."""

    what = "the local disk"

    def __init__(self, every: int, directory: str, run: str, environment: Mapping[str, str]) -> None:
        super().__init__(every)
        # Of this run alone: several may use the same disk.
        path = Path(directory).expanduser().absolute() / f"run-{hashlib.sha256(run.encode()).hexdigest()[:16]}"
        self._shelf, self._host = Directory(path), environment.get(SLOT, str(_rank()))
        self._address = _own_address(environment)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"tiers.disk: {path} cannot be made: {e.strerror}. Choose another directory.") from e

    def put(self, blobs: Mapping[str, bytes | memoryview]) -> list[str]:
        try:
            for name, data in blobs.items():
                put_pieces(self._shelf, name, [data])
        except BlobError as e:
            return [str(e)]
        return []

    def drop(self, names: Iterable[str]) -> None:
        self._shelf.drop(names)

    def drop_all(self, chosen: Callable[[str], bool]) -> None:
        self._shelf.drop([name for name in self._shelf.sizes() if chosen(name)])

    @contextlib.contextmanager
    def opened(self) -> Iterator[Sequence[Place]]:
        token = str(all_values(secrets.token_hex(16))[0])
        with Server(self._shelf, host=self._address, token=token) as server:
            found: list[tuple[str, str]] = [tuple(each) for each in all_values([self._host, server.address])]
            yield [Place(host, Client(address, token)) for host, address in found]


def targets(addresses: Sequence[str], rank: int, copies: int) -> list[int]:
    """Returns which of the hosts keep what a process has: its own, and those after it, other machines first.

    >>> targets(["a:1", "a:2", "b:1", "b:2"], rank=0, copies=2), targets(["a:1", "a:2", "a:3"], rank=2, copies=2)
    ([0, 2], [2, 0])
    """
    own = addresses[rank].rpartition(":")[0]
    after = [(rank + i) % len(addresses) for i in range(1, len(addresses))]
    after.sort(key=lambda each: addresses[each].rpartition(":")[0] == own)
    return [rank, *after][:copies]


def _tried(place: Place, work: Callable[[Client], None]) -> str | None:
    """Does something at a place, and returns what went wrong."""
    try:
        work(place.client)
    except BlobError as e:
        return f"host {place.host}: {e}"
    return None


def _rank() -> int:
    return jax.process_index()


def _own_address(environment: Mapping[str, str]) -> str:
    """Returns the address at which the other processes reach this host."""
    if MEMORY in environment:
        return environment[MEMORY].rpartition(":")[0]
    coordinator = environment.get("JAX_COORDINATOR_ADDRESS", "")
    if jax.process_count() == 1 or not coordinator:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # Nothing is sent.
        probe.connect((coordinator.rpartition(":")[0], 9))
        return probe.getsockname()[0]
