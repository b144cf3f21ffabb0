# SPDX-License-Identifier: Apache-2.0
"""Measurements for Prometheus, under vLLM's names where they mean the same."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .._engine import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("model_name",)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_BETWEEN = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)


class Metrics:
    """What a server measures of the model that it serves.

    Args:
        stats: returns what the engine says of itself.
    """

    def __init__(self, model: str, stats: Callable[[], Stats]) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineStats(model, stats))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, _LABELS, registry=registry, buckets=buckets)
            return made.labels(model)

        self.first = histogram("time_to_first_token_seconds", "From a request to its first token.", _FIRST)
        self.between = histogram("inter_token_latency_seconds", "Between one token and the next.", _BETWEEN)
        self.mean = histogram(
            "request_time_per_output_token_seconds", "The mean time between tokens of a request.", _BETWEEN
        )
        self.whole = histogram("e2e_request_latency_seconds", "From a request to its last token.", _WHOLE)
        ended = Counter(
            "vllm:request_success_total",
            "Requests by why they ended.",
            (*_LABELS, "finished_reason"),
            registry=registry,
        )
        self.ended = {reason: ended.labels(model, reason) for reason in ("stop", "length", "abort", "error")}

    def clock(self) -> "Clock":
        """Returns what measures one choice, from now on."""
        return Clock(self)

    def text(self) -> bytes:
        """Returns all of it as Prometheus reads it."""
        return generate_latest(self._registry)


class Clock:
    """Measures one choice."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._first = self._last = 0.0
        self._count, self._is_done = 0, False

    def tokens(self, count: int) -> None:
        """Says that there are new tokens."""
        if not count:
            return
        now = time.perf_counter()
        if not self._count:
            self._first = now
            self._metrics.first.observe(now - self._start)
        for _ in range(count if self._count else count - 1):  # Those that come together share the time.
            self._metrics.between.observe((now - self._last) / count if self._count else 0.0)
        self._last, self._count = now, self._count + count

    def finish(self, reason: str) -> None:
        """Says why there are no more; only the first reason counts."""
        if self._is_done:
            return
        self._is_done = True
        self._metrics.ended[reason].inc()
        if reason not in ("stop", "length"):
            return
        self._metrics.whole.observe(time.perf_counter() - self._start)
        if self._count > 1:
            self._metrics.mean.observe((self._last - self._first) / (self._count - 1))


_GAUGES: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "num_requests_running": ("Requests that are being answered.", lambda stats: stats.running),
    "num_requests_waiting": ("Requests that wait.", lambda stats: stats.waiting),
    "kv_cache_usage_perc": ("The part of the pages that is used; 1 is all.", lambda stats: _used(stats)),
}
_COUNTERS: dict[str, tuple[str, Callable[[Stats], float]]] = {
    "prompt_tokens": ("Tokens of prompts.", lambda stats: stats.prompt_tokens),
    "generation_tokens": ("Tokens that were written.", lambda stats: stats.generated_tokens),
    "prefix_cache_queries": ("Tokens looked for in the prefix cache.", lambda stats: stats.prompt_tokens),
    "prefix_cache_hits": ("Tokens found in the prefix cache.", lambda stats: stats.cached_tokens),
    "spec_decode_num_draft_tokens": ("Tokens that were guessed.", lambda stats: stats.drafted_tokens),
    "spec_decode_num_accepted_tokens": ("Guessed tokens that were right.", lambda stats: stats.accepted_tokens),
    "num_preemptions": ("Requests that gave up their pages, and started again.", lambda stats: stats.preemptions),
}


def _used(stats: Stats) -> float:
    """Returns the part of the pages that is used, in the group that has the fewest left."""
    return max((pages.used / max(1, sum(pages)) for pages in stats.pages.values()), default=0.0)


class _EngineStats(Collector):
    def __init__(self, model: str, stats: Callable[[], Stats]) -> None:
        self._model, self._stats = model, stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for table, family in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
            for name, (text, value) in table.items():
                metric = family(f"vllm:{name}", text, labels=_LABELS)
                metric.add_metric([self._model], value(stats))
                yield metric
        kernels = GaugeMetricFamily(
            "dovetail:kernel_parts",
            "Parts of the model that a kernel computes; where it is not the preferred one, why.",
            labels=(*_LABELS, "kernel", "instead_of"),
        )
        for use in stats.kernels:
            instead = "; ".join(f"{kernel}: {reason}" for kernel, reason in use.refused)
            kernels.add_metric([self._model, use.kernel, instead], use.parts)
        yield kernels
