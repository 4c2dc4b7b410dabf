"""Metrics of sinks: how far each is behind, and what came of its deliveries."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from feeds.times import Now
from mmqjp.sinks.control import SinkState

COUNTED = ("delivered", "failed", "given_up")


class SinkMetrics:
    """The metrics of sinks, each with the label `sink`."""

    def __init__(self, registry: CollectorRegistry, now: Now) -> None:
        self._now = now
        descriptions = {
            "delivered": "Outputs delivered.",
            "failed": "Attempts that failed.",
            "given_up": "Outputs given up: too many, too old, or refused for good.",
        }
        self._counters = {
            key: Counter(f"mmqjp_sink_{key}", descriptions[key], ["sink"], registry=registry) for key in COUNTED
        }
        self._behind = Gauge("mmqjp_sink_behind", "Outputs not yet delivered.", ["sink"], registry=registry)
        self._seconds = Gauge(
            "mmqjp_sink_behind_seconds", "Age of the oldest output not yet delivered.", ["sink"], registry=registry
        )
        self._counted: dict[tuple[str, str], int] = {}

    def update(self, states: Iterable[SinkState]) -> None:
        """Sets the metrics to the states of all sinks."""
        found, now = {state.name: state for state in states}, self._now()
        self._behind.clear()
        self._seconds.clear()
        for name, state in found.items():
            self._behind.labels(name).set(state.behind)
            since = now if state.behind_since is None else state.behind_since
            self._seconds.labels(name).set(max(now - since, 0) / 1e6)
            for key, counter in self._counters.items():
                count, before = getattr(state, key), self._counted.get((name, key), 0)
                counter.labels(name).inc(count - before if count >= before else count)  # less: a new sink of the name
                self._counted[name, key] = count
        for name in {name for name, _ in self._counted} - found.keys():
            for key, counter in self._counters.items():
                counter.remove(name)
                self._counted.pop((name, key), None)
