"""What a step asks about the registered queries: of the registry, or of what executors have of it.

Lineage: the streams and queries that are behind others.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from typing import Protocol

from mmqjp.queries.forms import Form, RowPart
from mmqjp.queries.model import HiddenStream, Owner, Subscription, Target
from mmqjp.queries.registry import Registry


class KnownQueries(Protocol):
    """The registered queries. `mmqjp.queries.registry.Registry` describes the methods."""

    @property
    def subscriptions(self) -> Mapping[int, Subscription]: ...

    def form(self, id: str) -> Form | None: ...

    def parts_of_row(self, row: int) -> Collection[RowPart]: ...

    def template_of(self, row: int) -> int: ...

    def read_of(self, form_id: str) -> list[Subscription]: ...

    def readers(self, stream: str) -> list[Subscription]: ...

    def named(self, name: str) -> list[Subscription]: ...

    def inner(self, target: Target) -> Iterator[HiddenStream]: ...


def cycle_of(registry: Registry, name: str, without: Container[Subscription] = frozenset()) -> list[str]:
    """Returns the streams on a path from a stream to itself, avoiding the queries `without`; [] if none exists."""
    if not registry.is_read(name):
        return []
    ways, met = [[name]], set()
    while ways:
        way = ways.pop()
        for stream in registry.made_of(way[0], without):
            if stream == name:
                return [name, *way]
            if stream not in met:
                met.add(stream)
                ways.append([stream, *way])
    return []


def publishers_behind(registry: KnownQueries, query: Subscription) -> set[Subscription]:
    """Returns the queries whose outputs a query reads, directly or through others."""
    return behind(registry, query)[0]


def behind(registry: KnownQueries, owner: Owner) -> tuple[set[Subscription], set[HiddenStream]]:
    """Returns the queries whose outputs a plan node reads, and the hidden streams, directly or through others."""
    queries, streams = set[Subscription](), set[HiddenStream]()
    waiting: list[Owner] = [owner]
    while waiting:
        for target in waiting.pop().targets:
            inner = [stream for stream in registry.inner(target) if stream not in streams]
            makers = (s for stream in target.streams for s in registry.named(stream) if s.publishes)
            fresh = [maker for maker in makers if maker not in queries]
            streams.update(inner)
            queries.update(fresh)
            waiting += [*inner, *fresh]
    return queries, streams
