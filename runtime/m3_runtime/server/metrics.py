"""What a server counts, for Prometheus. One registry a server, so that two in one process do not add up."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from m3_runtime.chat.events import Usage
from m3_runtime.chat.session import ChatEngine
from m3_runtime.server.worker import Worker

OUTCOMES = ("answered", "refused", "failed", "left")
"""How a request can end: left means that the client did not wait for the end."""
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """The figures of one server; gauges are read when they are asked for."""

    def __init__(self, chat: ChatEngine, worker: Worker):
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("m3_requests", "Chat completions by how they ended.", ["outcome"], registry=registry)
        for outcome in OUTCOMES:  # a series that is there from the start has a rate when it first grows
            self._requests.labels(outcome)
        self._prompt = Counter("m3_prompt_tokens", "Tokens of prompts, cached ones included.", registry=registry)
        self._cached = Counter("m3_cached_prompt_tokens", "Tokens of prompts taken from the cache.", registry=registry)
        self._generated = Counter("m3_completion_tokens", "Tokens of answers.", registry=registry)
        self._first = Histogram(
            "m3_time_to_first_token_seconds",
            "From a request to the first token of its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._duration = Histogram(
            "m3_request_duration_seconds",
            "From a request to the end of all its answers.",
            buckets=_SECONDS,
            registry=registry,
        )
        running = Gauge("m3_answers_running", "Answers that have begun and not ended.", registry=registry)
        running.set_function(lambda: worker.num_running)
        pages = Gauge("m3_cache_pages", "Pages of 128 tokens in the cache.", ["state"], registry=registry)
        pool = chat.engine.pool
        pages.labels("free").set_function(lambda: pool.num_free)
        pages.labels("used").set_function(lambda: pool.num_used)
        pages.labels("cached").set_function(lambda: pool.num_cached)

    def begin(self) -> Watch:
        """Start to watch one request."""
        return Watch(self)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def ended(self, outcome: str, usage: Usage, start: float, first: float | None) -> None:
        """Count a request; times are those of time.monotonic."""
        self._requests.labels(outcome).inc()
        if outcome == "answered":
            self._duration.observe(time.monotonic() - start)
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.cached_tokens)
        self._generated.inc(usage.completion_tokens)
        if first is not None:
            self._first.observe(first - start)


class Watch:
    """One request; `end` counts once, whatever is said later."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._start = time.monotonic()
        self._first: float | None = None
        self._ended = False

    def token(self) -> None:
        self._first = self._first or time.monotonic()

    def end(self, outcome: str, usage: Usage | None = None) -> None:
        """`outcome` is one of OUTCOMES."""
        if not self._ended:
            self._ended = True
            self._metrics.ended(outcome, usage or Usage(), self._start, self._first)
