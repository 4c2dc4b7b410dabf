"""The events that a document has by a definition, one by one, and why it has none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from mmqjp.documents.record import Record
from mmqjp.explain.block_rows import BlockTrial
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.readable import ReadableQuery
from mmqjp.explain.retrace.event import Event, Given, Plain
from mmqjp.explain.sample import TooLong
from mmqjp.queries.event_compile import stored_definition
from mmqjp.queries.event_statements import Definition
from xpath_stage.binder import Node, Part, Take, each_below, each_binding, uncounted
from xscl import Query, Script, to_xscl
from xscl.algebra.event_pattern import EventAttribute
from xscl.algebra.functions import derive, xpath_number
from xscl.algebra.pattern import naming
from xscl.syntax import SelectItem, SelectItems

MOST_EVENTS = 10_000
"""A document with more events of a definition has none."""

CHARACTERS_PER_STEP = 256


@dataclass(frozen=True)
class DocumentEvents:
    """Makes the events of a definition."""

    definition: Definition

    @cached_property
    def _pattern(self) -> Part:
        return Part(naming(self.definition.pattern.pattern, self.definition.pattern.variables))

    @cached_property
    def _paths(self) -> dict[str, Part]:
        return {one.name: Part(one.path) for one in self.definition.pattern.attributes if one.path is not None}

    def of(self, record: Record, take: Take = uncounted) -> list[Event]:
        """Returns the events of a document. Raises TooLong if there are more than MOST_EVENTS."""
        pattern = self.definition.pattern
        if record.stream != pattern.stream:
            return []
        made = dict[tuple[Node, ...], Event]()
        for binding in each_binding(self._pattern, record.tree, {}, take):
            bound = dict(binding)
            nodes = tuple(bound[var] for var in pattern.variables)
            if nodes in made:
                continue
            if len(made) == MOST_EVENTS:
                raise TooLong
            values = {one.name: self._value(one, record, bound, take) for one in pattern.attributes}
            source = record.id, record.stream
            given = Given(self.definition.name, source, record.sources, (_label(record, nodes[0]),), nodes)
            made[nodes] = Event(values, record.t0, record.t1, given)
        return list(made.values())

    def _value(self, attribute: EventAttribute, record: Record, bound: dict[str, Node], take: Take) -> Plain:
        if attribute.var is None:
            return _typed(attribute, attribute.constant)
        node: Node | None = bound[attribute.var]
        if (part := self._paths.get(attribute.name)) is not None:
            below = each_below(part, record.tree, bound[attribute.var], take)
            node = min((end for ((_, end),) in below), default=None)
        if node is None:
            return None
        text = record.tree.string_value(*node)
        take(1 + len(text) // CHARACTERS_PER_STEP)
        for name in attribute.functions:
            text = derive(name, text)
        return _typed(attribute, text)

    @cached_property
    def _readable(self) -> ReadableQuery:
        """A query whose block is that of the definition, and that selects what it takes with IN."""
        found, script = stored_definition(self.definition.text)
        each = tuple(SelectItem(one.operand, f"v{place}") for place, one in enumerate(found.attributes) if one.each)
        query = Query(found.block, SelectItems(each) if each else None)
        return ReadableQuery.of(to_xscl(Script((query,), script.namespaces)))

    def why_none(self, record: Record, take: Take = uncounted) -> Iterator[Stage]:
        """Yields the stages of the definition that a document passes, and the first that it does not, with what there
        is instead."""
        side = self._readable.normal.conjuncts[0].left
        trial = BlockTrial(self._readable, 0, side, ())
        trial.look(record, take)
        for stage in trial.stages():
            if stage.kind == "asked" and not stage.found:
                stage = replace(stage, hint="each event takes one with IN")
            yield replace(stage, block=0)


def _typed(attribute: EventAttribute, text: str) -> Plain:
    if attribute.kind == "string":
        return text
    number = xpath_number(text)
    return number if math.isfinite(number) else None


def _label(record: Record, node: Node) -> int | str:
    element, place = node
    return f"{element}/@{record.tree.attribute(element, place)[0]}" if place else element
