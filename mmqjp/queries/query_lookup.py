"""Lookups over the registered queries: the protocol that a step needs, and the streams and queries behind others. The
registry implements the protocol, and so does the subset that executors get."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from typing import Protocol

from mmqjp.queries.forms import Form, RowPart
from mmqjp.queries.model import HiddenStream, Owner, Subscription, Target
from mmqjp.queries.registry import Registry


class KnownQueries(Protocol):
    """The registered queries; see `mmqjp.queries.registry.Registry` for the methods."""

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
    """Returns a path from a stream to itself that avoids the queries `without`; [] if none exists."""
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
    return behind(registry, query)[0]


def behind(registry: KnownQueries, owner: Owner) -> tuple[set[Subscription], set[HiddenStream]]:
    """Returns the queries and hidden streams that a plan node reads, transitively."""
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
