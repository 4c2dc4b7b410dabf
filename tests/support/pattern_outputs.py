"""What an engine has to tell of a random world with PATTERN statements, as outputs: their documents and nodes, too."""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lxml import etree

from mmqjp.answers.output import Output
from tests.oracle.event_values import Value
from tests.oracle.events import Event
from tests.oracle.pattern_matches import Match
from tests.oracle.pattern_syntax import Letter, Letters, Many, Near, OneOf, Pattern, Times
from tests.oracle.pattern_world import PatternWorld, returned
from xscl.algebra.values import number_text

Element = tuple[str, tuple[tuple[str, str], ...], Any]
"""A name, attributes, and a text or elements."""


class Told(NamedTuple):
    """An output, by what it says. The elements of CEL's outputs are sorted."""

    query: str
    t0: int
    t1: int
    errors: str | None
    elements: tuple[Element, ...]
    documents: tuple[str, ...]
    nodes: tuple[str, ...]


def _in_order(sign: int) -> Any:
    """An order of events: of one time those of documents go by stream and id, and published ones as they are, or the
    other way round."""

    def order(one: Event) -> tuple[object, ...]:
        (part,) = one.parts
        assert isinstance(part, tuple)
        if isinstance(part[-1], Event):
            of = [sign * ord(char) for char in repr(sorted(map(repr, one.parts)))]
            return one.t1, part[0], "", of
        return one.t1, part[0], f"{part[0]}-{part[1]}", []

    return order


def judges(found: PatternWorld) -> list[PatternWorld]:
    """The world by both orders of published events of one time, which nobody knows: their ids are digests."""
    return [
        PatternWorld(found.schemas, found.given, found.statements, found.lives, order=_in_order(sign))
        for sign in (1, -1)
    ]


def told(output: Output) -> Told:
    root = etree.fromstring(output.xml)
    elements = tuple(map(_element, root))
    if all(re.fullmatch(r"e[0-9]+", name) for name in output.nodes):
        elements = tuple(sorted(elements))
    return Told(output.query, output.t0, output.t1, root.get("errors"), elements, output.documents, tuple(output.nodes))


def _element(node: Any) -> Element:
    attributes = tuple((str(name), str(value)) for name, value in node.attrib.items())
    return node.tag, attributes, tuple(map(_element, node)) if len(node) or attributes else node.text or ""


Standing = tuple[int, int, str, str]
"""The place of a document among others: t1, t0, its stream and its id."""


def outputs_of(name: str, place: int, world: PatternWorld) -> Iterator[Told]:
    """Yields what a statement has to tell under a name."""
    times = {
        f"{part[0]}-{part[1]}": (one.t1, one.t0, f"documents_{stream}", f"{part[0]}-{part[1]}")
        for stream, events in world.given.items()
        for one in events
        for part in one.parts
        if isinstance(part, tuple)
    }
    statement = world.statements[place]
    if isinstance(statement, Pattern | Near):
        for match in world.matches(place):
            yield _of_match(name, statement, match, world, times)
        return
    for one in world.results(place):
        documents = tuple(sorted(set(_documents(one.parts)), key=times.__getitem__))
        elements = [(label, (), _text(value)) for label, value in one.attributes if value is not None]
        nodes = tuple(f"e{number}" for number in range(1, len(documents) + 1))
        yield Told(name, one.t0, one.t1, None, tuple(sorted(elements)), documents, nodes)


def _of_match(
    name: str, statement: Pattern | Near, match: Match, world: PatternWorld, times: Mapping[str, Standing]
) -> Told:
    named = list(_named(statement, match, world))
    roots = []
    for label, _, one in named:
        behind = sorted(set(_documents(one.parts)), key=times.__getitem__)
        roots += [(id, label if len(behind) == 1 else f"{label}.e{at}") for at, id in enumerate(behind, 1)]
    roots.sort(key=lambda root: times[root[0]])
    if statement.select is None:
        elements: list[Element] = [
            (
                label.partition("[")[0],
                (("t0", str(one.t0)), ("t1", str(one.t1))),
                tuple((key, (), _text(one.values[key])) for key in schema if one.values[key] is not None),
            )
            for label, schema, one in named
        ]
    else:
        labels = {item.label for item in statement.select}
        items = [(label, value) for label, value in returned(statement, match) if label in labels]
        elements = [
            (label, (), _text(value))
            for label, values in items
            for value in (values if isinstance(values, tuple) else (values,))
            if value is not None
        ]
    return Told(
        name,
        match.t0,
        match.known,
        str(match.errors) if isinstance(statement, Near) else None,
        tuple(elements),
        tuple(dict.fromkeys(id for id, _ in roots)),
        tuple(label for _, label in roots),
    )


def _named(statement: Pattern | Near, match: Match, world: PatternWorld) -> Iterator[tuple[str, Iterable[str], Event]]:
    """The events of a match with what they are called, and their attributes in order."""
    if isinstance(statement, Pattern) and statement.together:
        last = statement.positive[-1]
        yield last.variable, world.schemas[last.stream], match.flat[0]
        return
    if isinstance(statement, Pattern):
        for variable, events in zip(statement.positive, match.events, strict=True):
            for at, one in enumerate(events, 1):
                name = f"{variable.variable}[{at}]" if isinstance(variable, Many) else variable.variable
                yield name, world.schemas[variable.stream], one
        return
    several = list(_letters(statement.word))
    counts: dict[str, int] = {}
    for one in match.flat:
        (stream,) = {name for name in statement.streams if one in world.stream(name)}
        counts[stream] = counts.get(stream, 0) + 1
        name = f"{stream}[{counts[stream]}]" if several.count(stream) > 1 else stream
        yield name, world.schemas[stream], one


def _letters(word: Iterable[Letters]) -> Iterator[str]:
    for part in word:
        match part:
            case Letter():
                yield part.stream
            case Times():
                yield from [*_letters([part.part])] * 2
            case OneOf():
                for one in part.words:
                    yield from _letters(one)


def _documents(parts: Iterable[Hashable]) -> Iterator[str]:
    for part in parts:
        assert isinstance(part, tuple)
        if isinstance(part[-1], Event):
            yield from _documents(part[-1].parts)
        else:
            yield f"{part[0]}-{part[1]}"


def _text(value: Value) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def assert_told(outputs: Sequence[Output], names: Sequence[str], world: PatternWorld) -> None:
    """Asserts that outputs are those of a world, whose statements have these names, each once."""
    assert len({one.id for one in outputs}) == len(outputs)
    got = {told(output) for output in outputs}
    right, other = (
        {one for place, name in enumerate(names) for one in outputs_of(name, place, judge)} for judge in judges(world)
    )
    for name in dict.fromkeys(names):
        own, mine = ({one for one in some if one.query == name} for some in (got, right))
        if mine == {one for one in other if one.query == name}:
            texts = [world.statements[place].text() for place, of in enumerate(names) if of == name]
            assert own == mine, f"{texts}\nmissing: {mine - own}\ntoo many: {own - mine}"
