# SPDX-License-Identifier: Apache-2.0
"""Attention by the best kernel that there is for what is asked."""

from jax import Array

from ._attention import AttentionInputs, AttentionKernel, Parts, Scoring
from ._blockwise import BlockwiseAttention
from ._kernel_choice import Support, choose


class PreferredAttention(AttentionKernel):
    """The first of several kernels that computes what it is asked for; see `kernel_choices`."""

    class Config(AttentionKernel.Config):
        kernels: tuple[AttentionKernel.Config, ...] = (BlockwiseAttention.Config(),)  # The best ones first.

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._kernels: list[AttentionKernel] = [
            kernel.build(path=f"{self._path}.kernels[{i}]".removeprefix(".")) for i, kernel in enumerate(cfg.kernels)
        ]

    @property
    def reads_pages(self) -> bool:
        return any(kernel.reads_pages for kernel in self._kernels)

    def attend(self, inputs: AttentionInputs, scoring: Scoring, aligned: bool | Parts) -> Array:
        def supports(kernel: AttentionKernel) -> Support:
            if inputs.pages is not None and not kernel.reads_pages:
                return Support("it does not read pages")
            return kernel.supports(inputs, scoring, aligned)

        kernel = choose(self._path or "PreferredAttention", self._kernels, supports)
        return kernel.attend(inputs, scoring, aligned)
