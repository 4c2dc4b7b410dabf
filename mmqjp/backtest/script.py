"""A script for a back-test: which registered queries and outside streams it reads, and what is new in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from common.errors import InputError, InvalidValue
from mmqjp.backtest.result import Novelty
from mmqjp.queries.model import Subscription
from mmqjp.queries.refuse_events import refuse_events
from mmqjp.queries.registry import Registry
from templates.novelty import needs_of
from xscl import Script, parse_script
from xscl.algebra.normal import Conjunct
from xscl.lower import normalize
from xscl.scope import blocks

MOST_QUERIES = 1_000
"""How many queries a back-test tries."""


class TooManyQueries(InputError, ValueError):
    """A script has more queries than a back-test tries."""


@dataclass(frozen=True, slots=True)
class PreparedScript:
    """A script: its text, names and texts of the registered queries behind the streams that it reads, and the streams
    from outside that are read. `novelty` says what it would add to what is registered."""

    text: str
    publishers: tuple[tuple[str, str], ...]
    streams: frozenset[str]
    novelty: Novelty

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self) | {"streams": sorted(self.streams)}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> PreparedScript:
        """Returns what such an object says."""
        publishers = tuple((name, text) for name, text in found["publishers"])
        return PreparedScript(found["text"], publishers, frozenset(found["streams"]), Novelty(**found["novelty"]))


def prepared(text: str, registry: Registry) -> PreparedScript:
    """Prepares a script. `registry` is not changed, and another thread may use it meanwhile.

    Queries that the script PUBLISHes replace the registered ones of their names. Raises XsclErrors, TooManyQueries, and
    InvalidValue for event statements and for what reads them.
    """
    script = parse_script(text)
    refuse_events(script)
    if len(script.queries) > MOST_QUERIES:
        raise TooManyQueries(
            f"the script has {len(script.queries):,} queries, and a back-test tries {MOST_QUERIES:,}: leave some out"
        )
    publishers: dict[Subscription, None] = {}
    made, waiting, outside = script.published(), _read(script), set[str]()
    met = set(waiting)
    while waiting:
        stream = waiting.pop()
        makers = [] if stream in made else [query for query in registry.named(stream) if query.publishes]
        if stream not in made and not makers:
            outside.add(stream)
        for query in makers:
            if query.is_events:
                raise InvalidValue(f"event queries PUBLISH {stream}, and cannot be tried here; leave out what reads it")
            if query.active:
                publishers[query] = None
                fresh = _read(parse_script(query.text, stored=True)) - met
                met |= fresh
                waiting |= fresh
    return PreparedScript(
        text, tuple((one.name, one.text) for one in publishers), frozenset(outside), _novelty(script, registry)
    )


def _read(script: Script) -> set[str]:
    """The streams that a script reads."""
    return {block.stream for query in script.queries for block in blocks(query.source)}


def _novelty(script: Script, registry: Registry) -> Novelty:
    namespaces = dict(script.namespaces)
    conjuncts = [c for query in script.queries for c in _all(normalize(query, namespaces).conjuncts)]
    needs = needs_of(registry.catalog, conjuncts)
    return Novelty(
        len(needs.patterns),
        sum(needs.patterns.values()),
        len(needs.templates),
        sum(needs.templates.values()),
        len(needs.rows),
        sum(needs.rows.values()),
    )


def _all(conjuncts: tuple[Conjunct, ...]) -> Iterator[Conjunct]:
    """Conjunctive queries, with those of the inner joins that they read."""
    for conjunct in conjuncts:
        yield conjunct
        for side in conjunct.sides():
            if side.hidden is not None:
                yield from _all(side.hidden.conjuncts)
