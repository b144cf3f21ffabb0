# SPDX-License-Identifier: Apache-2.0
"""Many models from a few: every size of every family, as stacks of several shapes, with several vocabularies."""

from collections import abc
from collections.abc import Callable, Iterator, Mapping
from itertools import product, zip_longest
from random import Random
from typing import Any, NamedTuple

from dovetail.nn import Layer, Repeat, Sequence


class Base(NamedTuple):
    """A model to start from."""

    name: str
    family: str
    config: Callable[[], Any]  # Returns the config of a `CausalLM`; other processes must be able to unpickle it.


def _nested(stack: Layer.Config) -> Layer.Config:
    return Sequence.Config(layers=(stack,))


def _doubled(stack: Layer.Config) -> Layer.Config:
    return Sequence.Config(layers=(stack, stack))


def _paired(stack: Layer.Config) -> Layer.Config:
    """Layers two by two where they are all alike; else nested once more, so that it is another tree, too."""
    if not isinstance(stack, Repeat.Config) or isinstance(stack.layer, tuple) or stack.num_layers < 2:
        return _nested(_nested(stack))
    return Repeat.Config(layer=(stack.layer, stack.layer), num_layers=stack.num_layers)


# Shape of a stack: how it is made, and how often the parameters of the stack are in it.
_SHAPES: Mapping[str, tuple[Callable[[Any], Any], int]] = {
    "as it is": (lambda stack: stack, 1),
    "paired": (_paired, 1),
    "nested": (_nested, 1),
    "doubled": (_doubled, 2),
}
_MORE_WORDS = (0, 256, 1024, 4096)


class Model(NamedTuple):
    """A base with another shape of stack and more words."""

    base: Base
    shape: str
    more_words: int

    def __str__(self) -> str:
        return f"{self.base.name}, {self.shape}, {self.more_words} more words"

    def config(self) -> Any:
        """Returns the config of the model."""
        cfg = self.base.config()
        return cfg.set(stack=_SHAPES[self.shape][0](cfg.stack), vocab_size=cfg.vocab_size + self.more_words)

    def parameters(self, base: Mapping[str, Any]) -> int:
        """Returns how many parameters it must have, by the specs of the base."""
        inside = sum(spec.size for path, spec in base.items() if path.startswith("stack."))
        words = [spec for spec in base.values() if "vocab" in spec.axes]
        per_word = sum(spec.size // spec.shape[spec.axes.index("vocab")] for spec in words)
        total = sum(spec.size for spec in base.values())
        return total + (_SHAPES[self.shape][1] - 1) * inside + self.more_words * per_word


def pool(bases: abc.Sequence[Base], seed: int) -> Iterator[Model]:
    """Yields all models in an order that the seed gives, each family in its turn as long as it has some."""
    random, queues = Random(seed), dict[str, list[Model]]()
    for base, shape, more in product(bases, _SHAPES, _MORE_WORDS):
        queues.setdefault(base.family, []).append(Model(base, shape, more))
    for queue in queues.values():
        random.shuffle(queue)
    for turn in zip_longest(*queues.values()):
        yield from (model for model in turn if model is not None)
