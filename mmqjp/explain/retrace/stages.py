"""The evaluator of event statements over single events, which explanations read: each event has its origin. Derives the
events of documents by their definitions, and computes the events of operators and the matches of PATTERNs that derive
from given documents. A `Trace` has these, or the stages up to the first that nothing passes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, pairwise, product
from operator import not_

from common.tools import gathered
from mmqjp.documents.record import Record
from mmqjp.explain.evidence import BlockEvidence
from mmqjp.explain.retrace import search as searches
from mmqjp.explain.retrace import values as traced
from mmqjp.explain.terms import CHARACTERS_PER_STEP, FunnelStage, Plain, ReadableQuery, TooLong, format_window
from mmqjp.queries.registry import RegisteredDefinition
from mmqjp.queries.stored import stored_definition
from pattern_stage.clauses import on_left, referenced_parts
from xpath_stage.binder import Node, PreparedNode, Take, each_below, each_binding, uncounted
from xpath_stage.filters import tree_value
from xscl.algebra import events as algebra
from xscl.algebra.joins import naming
from xscl.printer import to_xscl
from xscl.syntax import Query, Script, SelectItem, SelectItems

MAX_DOCUMENT_EVENTS = 10_000  # a document with more events of a definition has none


@dataclass(frozen=True)
class DocumentEvents:
    """Derives a definition's events from documents."""

    definition: RegisteredDefinition

    @cached_property
    def _pattern(self) -> PreparedNode:
        return PreparedNode(naming(self.definition.pattern.pattern, self.definition.pattern.variables))

    @cached_property
    def _paths(self) -> dict[str, PreparedNode]:
        return {one.name: PreparedNode(one.path) for one in self.definition.pattern.attributes if one.path is not None}

    def of(self, record: Record, take: Take = uncounted) -> list[traced.Event]:
        """Returns the events of a document. Raises TooLong if there are more than MAX_DOCUMENT_EVENTS."""
        pattern = self.definition.pattern
        if record.stream != pattern.stream:
            return []
        made = dict[tuple[Node, ...], traced.Event]()
        for binding in each_binding(self._pattern, record.tree, {}, take):
            bound = dict(binding)
            nodes = tuple(bound[var] for var in pattern.variables)
            if nodes in made:
                continue
            if len(made) == MAX_DOCUMENT_EVENTS:
                raise TooLong
            values = {one.name: self._value(one, record, bound, take) for one in pattern.attributes}
            (element, place), source = nodes[0], (record.id, record.stream)
            label = f"{element}/@{record.tree.attribute(element, place)[0]}" if place else element
            given = traced.SourceEvent(self.definition.name, source, record.sources, (label,), nodes)
            made[nodes] = traced.Event(values, record.t0, record.t1, given)
        return list(made.values())

    def _value(self, attribute: algebra.EventAttribute, record: Record, bound: dict[str, Node], take: Take) -> Plain:
        text = attribute.constant
        if attribute.var is not None:
            node: Node | None = bound[attribute.var]
            if (part := self._paths.get(attribute.name)) is not None:
                below = each_below(part, record.tree, bound[attribute.var], take)
                node = min((end for ((_, end),) in below), default=None)
            if node is None:
                return None
            text = record.tree.string_value(*node)
            take(1 + len(text) // CHARACTERS_PER_STEP)
            if attribute.functions:
                text = tree_value(record.tree, node, attribute.functions)
        return text if attribute.kind == "string" else traced.as_number(text)

    @cached_property
    def _readable(self) -> ReadableQuery:
        found, script = stored_definition(self.definition.text)
        each = tuple(SelectItem(one.operand, f"v{place}") for place, one in enumerate(found.attributes) if one.each)
        query = Query(found.block, SelectItems(each) if each else None)
        return ReadableQuery.of(to_xscl(Script((query,), script.namespaces)))

    def why_none(self, record: Record, take: Take = uncounted) -> Iterator[FunnelStage]:
        """Yields the stages of the definition up to the first that a document does not pass."""
        block = BlockEvidence(self._readable, 0, self._readable.normal.conjuncts[0].left)
        block.look(record, take)
        for stage in (one.shown() for one in block.told()):
            if stage.kind == "asked" and not stage.found:
                stage = replace(stage, hint="each event takes one with IN")
            yield replace(stage, block=0)


Docs = tuple[int, ...]  # document numbers, ascending

MOST_SPLIT = 3
"""Up to this number, documents may be split between the sides of an operator in any way; more keep their order."""


SEVERAL = 0, -1  # the rank of several documents in the place of one event


@dataclass(frozen=True, slots=True)
class Trace:
    """The result for a stream: its `events`, and the `stages`, the last of them empty if there is no event. `found`
    counts the documents with an event; `rank` says how far they got: the height of the operator that nothing passes and
    its stage. `near` are events in the way, and `without` documents that have no event. Of a PATTERN, `match` has
    events by variable, and `starts` counts the events at which a match begins, if no documents are given."""

    events: Sequence[traced.Event]
    stages: tuple[FunnelStage, ...]
    found: int
    rank: tuple[int, ...] = ()
    near: tuple[traced.Event, ...] = ()
    without: Docs = ()
    match: traced.MatchBindings | None = None
    starts: int = 0


def furthest_trace(ways: Iterable[Trace]) -> Trace:
    """Returns the first result that has events, else the one that got furthest."""
    return max(ways, key=lambda one: (bool(one.events), one.found, one.rank))


class Evaluator:
    """Computes the events of operators, and the matches of PATTERNs, that derive from documents. Each test of a
    condition is a step. `why_none` yields the stages up to the first that keeps a document, given by its number, from
    having an event of the named stream; `ends` is as in SearchGoal."""

    def __init__(
        self,
        given: searches.GivenEvents,
        take: Take,
        documents: Sequence[traced.DocumentRef] = (),
        why_none: Callable[[str, int], Iterable[FunnelStage]] = lambda name, number: (),
        ends: searches.ToldEnds = lambda pattern, given: None,
    ) -> None:
        self._given, self._take, self._why_none, self._ends = given, take, why_none, ends
        self._covering = traced.Covering(documents)
        self._documents = tuple(range(len(documents)))
        self._known: dict[tuple[int, Docs], tuple[algebra.Stream, Trace]] = {}

    def trace(self, statement: algebra.Statement) -> Trace:
        """Returns the events that derive from all documents; without documents, all."""
        if isinstance(statement, algebra.Pattern | algebra.NearPattern):
            return self._pattern(statement)
        return self._of(spelled_out_filters(statement), self._documents)

    def _of(self, stream: algebra.Stream, docs: Docs) -> Trace:
        key = id(stream), docs
        if key not in self._known:
            found = self._trace(stream, docs)
            if not isinstance(stream, algebra.Events):
                events = {traced.identity(one): one for one in found.events}.values()
                found = replace(found, events=sorted(events, key=lambda one: one.t1))
            self._known[key] = stream, found  # with the stream, so that its id stays its own
        return self._known[key][1]

    def _covers(self, event: traced.Event, docs: Docs) -> bool:
        return not docs or self._covering.of(event).issuperset(docs)

    def _trace(self, stream: algebra.Stream, docs: Docs) -> Trace:
        match stream:
            case algebra.Events(stream=name):
                return self._events(name, docs)
            case algebra.Select(source=source):
                found = self._of(source, docs)
                return replace(found, events=[_selected(stream, one) for one in found.events])
            case algebra.Filter(source=source):
                return self._filter(stream, self._of(source, docs))
            case algebra.Union(left=left, right=right):
                sides = self._of(left, docs), self._of(right, docs)
                every = [one for side in sides for one in side.events]
                stages = [stage for side in sides for stage in side.stages]
                best = furthest_trace(sides)
                return replace(best, events=every, stages=tuple(stages)) if all(one.events for one in sides) else best
            case algebra.Aggregate():
                return self._together(stream, docs)
            case algebra.Stories(source=source):
                return self._of(source, docs)
            case algebra.Next() | algebra.Fold():
                return self._sequence(stream, docs)

    # ------------------------------------------------------------ operators of one input

    def _events(self, name: str, docs: Docs) -> Trace:
        events = [one for one in self._given(name) if self._covers(one, docs)]
        if events or not docs:
            what = "" if events else f"no stored document has an event {name}"
            stage = searches.event_stage("event", name, len(events), what)
            return Trace(events, (stage,), len(docs) if events else 0, (0, 0))
        if len(docs) > 1:
            what = f"{len(docs)} documents are named for {name}, which is one event"
            return Trace([], (searches.event_stage("event", name, 0, what),), 0, SEVERAL)
        stages = tuple(self._why_none(name, docs[0]))
        is_there = bool(stages) and stages[-1].kind in ("late", "unseen")
        return Trace([], stages, int(is_there), (0, len(stages)), (), () if is_there else docs)

    def _filter(self, stream: algebra.Filter, source: Trace) -> Trace:
        stages, events = list(source.stages), source.events
        for number, condition in enumerate(traced.conjuncts(stream.condition) if events else (), 1):
            self._take(len(events))
            passed = [one for one in events if traced.condition_holds(condition, traced.own_scope(one))]
            text = traced.operator_condition_text(condition, stream)
            stages.append(searches.event_stage("filtered", text, len(passed)))
            if not passed:
                scope = traced.own_scope(events[-1])
                stages[-1] = stages[-1].told(traced.false_text(condition, stream, scope, events[-1]))
                return Trace([], tuple(stages), source.found, (height(stream), number))
            events = passed
        made = [traced.Event(one.values, one.t0, one.t1, traced.Derived(stream, (one,))) for one in events]
        return replace(source, events=made, stages=tuple(stages))

    def _together(self, stream: algebra.Aggregate, docs: Docs) -> Trace:
        sources = [self._of(stream.source, (number,)) for number in docs] or [self._of(stream.source, ())]
        source = _way(sources)
        if not source.events:
            return source
        times = {one.t1 for several in sources for one in several.events} if docs else None
        events = [one for one in self._groups(stream, times) if self._covers(one, docs)]
        by = f" that are equal in {', '.join(stream.by)}" if stream.by else ""
        which = "made of simultaneous events"
        if isinstance(stream, algebra.Sessions):
            which = f"a session, of events less than {format_window(stream.over)} apart,"
        what = "" if events else f"an event of it is {which}{by}, and these are not"
        stage = searches.event_stage("group", traced.stream_text(stream), len(events), what)
        return Trace(events, (*source.stages, stage), source.found, (height(stream), 1))

    def _groups(self, stream: algebra.Aggregate, times: set[int] | None) -> Iterator[traced.Event]:
        """Yields the events of AGGREGATE that end at these times, or all."""
        source = self._of(stream.source, ()).events
        self._take(len(source))
        for key, events in gathered((tuple([one.values[name] for name in stream.by]), one) for one in source).items():
            ends = [one.t1 for one in events]
            if isinstance(stream, algebra.Sessions):
                assert stream.over is not None, "a session has a window"
                heads = [at for at, (one, other) in enumerate(pairwise(ends), 1) if other - one >= stream.over]
                for first, last in pairwise([0, *heads, len(ends)]):
                    if times is None or not times.isdisjoint(ends[first:last]):
                        self._take(last - first)
                        yield traced.group_event(stream, key, tuple(events[first:last]))
                continue
            for end in dict.fromkeys(ends):
                if times is None or end in times:
                    last = bisect_right(ends, end)
                    first = bisect_right(ends, end - (1 if stream.over is None else stream.over))
                    self._take(last - first)
                    yield traced.group_event(stream, key, tuple(events[first:last]))

    # ------------------------------------------------------------ sequences

    def _sequence(self, stream: algebra.Next | algebra.Fold, docs: Docs) -> Trace:
        sources = [self._of(stream.left, ()), self._of(stream.right, ())]
        found, search = list[traced.Event](), None
        if _failed(sources) is None:
            goal = searches.SearchGoal(self._covering.of, docs, self._take)
            search = searches.RunSearch(stream, [one.events for one in sources], goal)
            found = [search.event(partial) for partial in search.results()]
        return self._answer(search, height(stream), sources, docs, found, self._ways(stream, docs))

    def _ways(self, stream: algebra.Next | algebra.Fold, docs: Docs) -> Iterator[list[Trace]]:
        for mine, others in _splits(docs):
            each = [(one,) for one in others] if isinstance(stream, algebra.Fold) and others else [others]
            yield [self._of(stream.left, mine), *(self._of(stream.right, some) for some in each)]

    def _pattern(self, pattern: algebra.Pattern | algebra.NearPattern) -> Trace:
        docs = self._documents
        names = sorted(pattern.streams)
        if isinstance(pattern, algebra.Pattern):
            names = list(dict.fromkeys(one.source.stream for one in pattern.variables if not one.negated))
        sources = [self._events(name, ()) for name in names]
        if isinstance(pattern, algebra.NearPattern):
            sources = [one for one in sources if one.events] or sources[:1]
        stages = tuple(stage for one in sources for stage in one.stages)
        search: searches.PatternSearch | searches.LetterSearch | None = None
        if _failed(sources) is None:
            goal = searches.SearchGoal(self._covering.of, docs, self._take, self._ends)
            search = searches.search_of(pattern, self._given, goal)
            better: traced.Event | None = None
            for partial in search.results():
                if not docs:
                    continue
                match, last = search.chosen(search.match(partial))
                events = [one for some in match.values() for one in some]
                if last is None or {number for one in events for number in self._covering.of(one)}.issuperset(docs):
                    return Trace(events, stages, len(docs), match=match)
                better = better or last
            if better is not None:
                what = f"a match with {traced.event_text(better)} is earlier or has more events"
                stage = searches.event_stage("maximal", "EARLIEST MAXIMAL", 0, what)
                return Trace([], (*stages, stage), len(docs), (0, len(docs), 1 << 20), (better,))
        way = [furthest_trace(self._events(name, (number,)) for name in names) for number in docs]
        return self._answer(search, 0, sources, docs, [], [[*way, *sources]])

    def _answer(
        self,
        search: searches.SequenceSearch | None,
        height: int,
        sources: Sequence[Trace],
        docs: Docs,
        found: Sequence[traced.Event],
        ways: Iterable[Sequence[Trace]],
    ) -> Trace:
        """Returns what a search found; if nothing with all documents gets to its end, the part without an event."""
        stages = tuple(stage for one in sources for stage in one.stages)
        if search is not None and (found or not docs):
            *passed, last = search.counted()
            last = replace(last, found=len(found)) if found else last
            return Trace(found, (*stages, *passed, last), len(docs), (height, 0), starts=search.starts)
        if search is None or search.rank[0] < len(docs):
            tried = list(map(_way, ways))
            if any(one.events for one in tried):
                tried = [one for one in tried if not one.events and one.rank != SEVERAL]
            if tried:
                return furthest_trace(tried)
        assert search is not None, "else an input has no events"
        near = () if search.best is None else search.best.near
        return Trace([], (*stages, *search.failed()), len(docs), (height, *search.rank), near)


def _selected(stream: algebra.Select, one: traced.Event) -> traced.Event:
    values = {name: traced.evaluate_value(value, traced.own_scope(one)) for name, value in stream.items}
    return traced.Event(values, one.t0, one.t1, traced.Derived(stream, (one,)))


def _failed(sources: Sequence[Trace]) -> Trace | None:
    return next((one for one in sources if not one.events), None)


def _way(sources: Sequence[Trace]) -> Trace:
    """Returns the first input without events, or the last one, with the documents of all that have events."""
    return replace(_failed(sources) or sources[-1], found=sum(one.found for one in sources))


def _splits(docs: Docs) -> Iterator[tuple[Docs, Docs]]:
    if len(docs) > MOST_SPLIT:
        yield from ((docs[:place], docs[place:]) for place in range(len(docs), -1, -1))
        return
    for sides in product((True, False), repeat=len(docs)):
        yield tuple(compress(docs, sides)), tuple(compress(docs, map(not_, sides)))


def height(stream: algebra.Stream) -> int:
    return max((1 + height(source) for source in algebra.sources_of(stream)), default=0)


def spelled_out_filters(stream: algebra.Stream) -> algebra.Stream:
    """Returns a stream with the conditions of NEXT and FOLD on right events alone as filters of these."""
    match stream:
        case algebra.Events():
            return stream
        case algebra.Select() | algebra.Filter() | algebra.Aggregate() | algebra.Stories():
            return replace(stream, source=spelled_out_filters(stream.source))
    stream = replace(stream, left=spelled_out_filters(stream.left), right=spelled_out_filters(stream.right))
    if isinstance(stream, algebra.Union):
        return stream
    every = traced.conjuncts(stream.condition if isinstance(stream, algebra.Next) else stream.chooses)
    filters = tuple(one for one in every if referenced_parts(one) == {"right"})
    if not filters:
        return stream
    rest = algebra.AllOf(tuple(one for one in every if one not in filters))
    right = algebra.Filter(stream.right, on_left(algebra.AllOf(filters)))
    if isinstance(stream, algebra.Next):
        return replace(stream, right=right, condition=rest)
    return replace(stream, right=right, chooses=rest)
