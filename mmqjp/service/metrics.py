"""Metrics of a service for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from feeds.documents import Now, now_us
from mmqjp.service.log import Log
from mmqjp.service.status import Status
from mmqjp.sinks.positions import SinkState

SINK_COUNTERS = ("delivered", "failed", "given_up")


class SinkMetrics:
    """The metrics of sinks, labelled by `sink`."""

    def __init__(self, registry: CollectorRegistry, now: Now) -> None:
        self._now = now
        descriptions = {
            "delivered": "Outputs delivered.",
            "failed": "Attempts that failed.",
            "given_up": "Outputs given up: too many, too old, or refused for good.",
        }
        self._counters = {
            key: Counter(f"mmqjp_sink_{key}", descriptions[key], ["sink"], registry=registry) for key in SINK_COUNTERS
        }
        self._behind = Gauge("mmqjp_sink_behind", "Outputs not yet delivered.", ["sink"], registry=registry)
        self._seconds = Gauge(
            "mmqjp_sink_behind_seconds", "Age of the oldest output not yet delivered.", ["sink"], registry=registry
        )
        self._counted: dict[tuple[str, str], int] = {}

    def update(self, states: Iterable[SinkState]) -> None:
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


LOOPBACK = "127.0.0.1"


COUNTERS = ("documents", "outputs", "duplicates", "dead_letters")


class Metrics:
    """Metrics in their own registry. As a `Log`, counts each event and passes it on."""

    def __init__(self, log: Log, now: Now = now_us) -> None:
        self._log, self._now = log, now
        self.registry = CollectorRegistry()
        descriptions = {
            "documents": "Documents accepted.",
            "outputs": "Outputs found.",
            "duplicates": "Documents already known by their id.",
            "dead_letters": "Documents rejected as dead letters.",
        }
        self._counters = {key: Counter(f"mmqjp_{key}", descriptions[key], registry=self.registry) for key in COUNTERS}
        self._seconds = Histogram(
            "mmqjp_batch_seconds", "Duration of a batch in seconds.", registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
        )  # fmt: skip
        self._commands = Counter("mmqjp_commands", "Commands from other processes.", ["do"], registry=self.registry)
        self._fetches = Counter("mmqjp_fetches", "Visits to feeds.", ["outcome"], registry=self.registry)
        self._queries = self._gauge("queries", "Registered queries.", "state")
        self._horizon = self._gauge("horizon_seconds", "The lowest watermark, Unix time.")
        self._evictable = self._gauge(
            "evictable_before_seconds", "No join needs documents that begin earlier, Unix time."
        )
        self._watermark = self._gauge("watermark_seconds", "A stream's watermark, Unix time.", "stream")
        self._lag = self._gauge("lag_seconds", "Age of the newest document in seconds.")
        self._waiting = self._gauge("waiting_files", "Files not yet read.")
        self._state = self._gauge("state_bytes", "Size of the state's files in bytes.")
        self._kept = self._gauge("kept_documents", "Documents kept of a stream.", "stream")
        self._bytes = self._gauge("kept_bytes", "Bytes of XML kept of a stream.", "stream")
        self._ties = self._gauge(
            "equal_times_pairs", "Pairs, at least, that FOLLOWED BY left out only because of equal times.", "query"
        )

        self._sinks = SinkMetrics(self.registry, now)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"mmqjp_{name}", text, labels, registry=self.registry)

    def event(self, name: str, /, **fields: object) -> None:
        if name == "batch":
            for key in COUNTERS:
                if isinstance(count := fields.get(key), int):
                    self._counters[key].inc(count)
            if isinstance(seconds := fields.get("seconds"), float):
                self._seconds.observe(seconds)
            for gauge, key in ((self._lag, "lag_seconds"), (self._waiting, "waiting_files")):
                if isinstance(value := fields.get(key), int | float):
                    gauge.set(value)
        elif name == "command":
            self._commands.labels(str(fields.get("do"))).inc()
        elif name == "fetch":
            self._fetches.labels(str(fields.get("outcome"))).inc()
        self._log.event(name, **fields)

    def update(self, found: Status) -> None:
        self._queries.labels("active").set(found.queries - found.paused)
        self._queries.labels("paused").set(found.paused)
        for gauge, time in ((self._horizon, found.horizon), (self._evictable, found.evictable_before)):
            gauge.set(float("nan") if time is None else time / 1e6)
        latest = [stream.latest for stream in found.streams if stream.latest is not None]
        if latest:
            self._lag.set((self._now() - max(latest)) / 1e6)
        self._waiting.set(0)  # the status is taken when everything is read
        if found.state_bytes is not None:
            self._state.set(found.state_bytes)
        for gauge in (self._watermark, self._kept, self._bytes, self._ties):
            gauge.clear()
        self._sinks.update(found.sinks)
        for query, pairs in found.ties.items():
            self._ties.labels(query).set(pairs)
        for stream in found.streams:
            if stream.watermark is not None:
                self._watermark.labels(stream.stream).set(stream.watermark / 1e6)
            self._kept.labels(stream.stream).set(stream.documents)
            self._bytes.labels(stream.stream).set(stream.bytes)

    def serve(self, port: int, address: str = LOOPBACK) -> int:
        """Serves http://address:port/metrics until the process ends. Returns the port; 0 picks a free one."""
        server, _ = start_http_server(port, address, self.registry)
        return int(server.server_port)
