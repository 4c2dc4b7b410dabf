"""Lineage: the streams and queries that are behind others."""

from __future__ import annotations

from collections.abc import Container

from mmqjp.queries.known_queries import KnownQueries
from mmqjp.queries.model import Owner, Subscription
from mmqjp.queries.registry import Registry


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
    found: set[Subscription] = set()
    waiting: list[Owner] = [query]
    while waiting:
        owner = waiting.pop()
        for target in owner.targets:
            waiting += registry.inner(target)
            makers = (s for stream in target.streams for s in registry.named(stream) if s.publishes)
            fresh = [maker for maker in makers if maker not in found]
            found.update(fresh)
            waiting += fresh
    return found
