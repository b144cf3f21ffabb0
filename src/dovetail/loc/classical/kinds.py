# SPDX-License-Identifier: Apache-2.0
"""The features themselves, the same for every design, and so never counted.

They are frequencies of rotary positions, and the shapes of feed-forwards made of experts.
"""

Frequencies = list[float]
Shapes = dict[str, tuple[int, ...]]


def plain(dim: int, theta: float) -> Frequencies:
    """Returns the frequencies of rotary positions."""
    return [theta ** (-i / dim) for i in range(0, dim, 2)]


def linear(dim: int, theta: float, *, factor: float) -> Frequencies:
    """All of them divided by a factor."""
    return [frequency / factor for frequency in plain(dim, theta)]


def ntk(dim: int, theta: float, *, factor: float) -> Frequencies:
    """Those of a larger base, so that only the lowest is divided by the factor."""
    return plain(dim, theta * factor ** (dim / (dim - 2)))


def low(dim: int, theta: float, *, factor: float, length: int) -> Frequencies:
    """Those that turn less than once within a length divided by a factor."""
    return [f / factor if f * length < 6.283185307179586 else f for f in plain(dim, theta)]


def partial(dim: int, theta: float, *, share: float) -> Frequencies:
    """Only a part of each head turns."""
    return plain(int(dim * share), theta)


def dense(dim: int, hidden_dim: int) -> Shapes:
    """Returns the shapes of a gated feed-forward."""
    return {"gate": (dim, hidden_dim), "up": (dim, hidden_dim), "down": (hidden_dim, dim)}


def experts(dim: int, hidden_dim: int, *, count: int) -> Shapes:
    """As many of them, and a router."""
    copies = {name: (count, *shape) for name, shape in dense(dim, hidden_dim).items()}
    return {**copies, "router": (dim, count)}


def biased(dim: int, hidden_dim: int, *, count: int) -> Shapes:
    """The router has a bias."""
    return {**experts(dim, hidden_dim, count=count), "bias": (count,)}


def shared(dim: int, hidden_dim: int, *, count: int, shared_dim: int) -> Shapes:
    """One more of another size, for every token."""
    always = {f"shared_{name}": shape for name, shape in dense(dim, shared_dim).items()}
    return {**experts(dim, hidden_dim, count=count), **always}


def grouped(dim: int, hidden_dim: int, *, count: int, groups: int) -> Shapes:
    """The router chooses groups first."""
    return {**experts(dim, hidden_dim, count=count), "group_router": (dim, groups)}
