"""A script for a back-test: which registered queries and outside streams it reads, and what is new in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from common.errors import InputError
from mmqjp.backtest.result import Novelty
from mmqjp.queries.event_compile import CompiledEvents, definition_text
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from templates.novelty import needs_of
from xscl import Script, parse_script
from xscl.algebra.normal import Conjunct
from xscl.event_check import schemas_of
from xscl.event_syntax import names_read
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

    Queries that the script PUBLISHes replace the registered ones of their names. Raises XsclErrors, TooManyQueries.
    """
    script = parse_script(text, events=registry.events.streams())
    count = len(script.queries) + len(script.event_queries)
    if count > MOST_QUERIES:
        raise TooManyQueries(
            f"the script has {count:,} queries, and a back-test tries {MOST_QUERIES:,}: leave some out"
        )
    publishers: dict[Subscription, None] = {}
    definitions: dict[str, str] = {}
    made = script.published() | {definition.name for definition in script.definitions}
    waiting, outside = _read(script), set[str]()
    met = set(waiting)

    def read(streams: set[str]) -> None:
        nonlocal met, waiting
        waiting |= streams - met
        met |= streams

    while waiting:
        stream = waiting.pop()
        if stream in made:
            continue
        if (definition := registry.events.definitions.get(stream)) is not None:
            definitions[definition.name] = definition.text
            read({definition.pattern.stream})
            continue
        makers = [query for query in registry.named(stream) if query.publishes]
        if not makers:
            outside.add(stream)
        for query in makers:
            if query.active:
                publishers[query] = None
                read(set(registry.events.reads(query)) if query.is_events else _read_by_text(query.text))
    return PreparedScript(
        text,
        tuple(_texts(publishers, definitions)),
        frozenset(outside),
        _novelty(script, registry),
    )


def _texts(publishers: Iterable[Subscription], definitions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields names and texts of what is registered, definitions before event queries, and these as one script each."""
    yield from definitions.items()
    yield from ((one.name, one.text) for one in publishers if not one.is_events)
    if events := [one for one in publishers if one.is_events]:
        names = ", ".join(dict.fromkeys(one.name for one in events))
        yield names, ";\n".join(one.text for one in events)


def _read_by_text(text: str) -> set[str]:
    return _read(parse_script(text, stored=True))


def _read(script: Script) -> set[str]:
    """The streams that a script reads, and events by their names."""
    read = {block.stream for query in script.queries for block in blocks(query.source)}
    read |= {definition.block.stream for definition in script.definitions}
    return read | {name.name for query in script.event_queries for name in names_read(query.stream)}


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
        *_new_events(script, registry),
    )


def _new_events(script: Script, registry: Registry) -> tuple[int, int, int, int, int]:
    """How many definitions a script has, and how many of them are new; and the same of the forms of its event queries:
    those of one form differ in name only. Last how many of them are registered as of another time."""
    if not script.has_events:
        return 0, 0, 0, 0, 0
    known = registry.events.definitions
    new = [
        one
        for one in script.definitions
        if one.name not in known or known[one.name].text != definition_text(one, script)
    ]
    schemas = schemas_of(script, registry.events.streams())
    compiled = (CompiledEvents(query, schemas) for query in script.event_queries)
    forms = {one.form_id: one.stream for one in compiled}
    others = [stream for form, stream in forms.items() if registry.form(form) is None]
    same = sum(registry.events.runs(stream) for stream in others)
    return len(script.definitions), len(new), len(forms), len(others) - same, same


def _all(conjuncts: tuple[Conjunct, ...]) -> Iterator[Conjunct]:
    """Conjunctive queries, with those of the inner joins that they read."""
    for conjunct in conjuncts:
        yield conjunct
        for side in conjunct.sides():
            if side.hidden is not None:
                yield from _all(side.hidden.conjuncts)
