"""The reason of an output: the rows of its documents that bind its nodes, the values that were equal, the other
conditions, and the times of the joins; of an event statement's, what filled its parts, and what allowed that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from operator import itemgetter

from mmqjp.answers.bindings import BoundValue, residual_holds, without_choice
from mmqjp.answers.output import Output
from mmqjp.documents.record import Record
from mmqjp.explain import terms
from mmqjp.explain.evidence import AbsenceEvidence, BlockEvidence, BoundNode, Evidence, EvidenceRow, paths
from mmqjp.explain.retrace import values as traced
from mmqjp.explain.retrace.search import GivenEvents, Partial, SearchGoal, search_of
from xpath_stage.binder import Node, PatternPath, PreparedNode, Take, each_below, each_binding
from xscl.algebra import events as algebra
from xscl.algebra import values as exp
from xscl.algebra.events import Aggregate, EventCondition, Filter, Fold, NearPattern, Next, Pattern, Sessions, Stream
from xscl.algebra.joins import Hidden, NormalQuery, PatternNode, Term, attach_branch, naming
from xscl.printer import to_xscl


def reason_of(
    query: terms.ReadableQuery,
    nodes: Mapping[str, int | str],
    parts: Sequence[tuple[Record, int]],
    steps: int,
    *,
    whole: bool = True,
) -> terms.Reason | None:
    """Returns the reason of an output with these nodes; None if these documents have none of them. `parts` are the
    documents of the blocks, each with its index in the output (-1: none). Unless `whole`, the reason has only joined
    values and join conditions. Raises Exhausted after `steps` steps, TooLong."""
    bound_terms = {entry.key: entry.value for entry in query.normal.entries if isinstance(entry.value, Term)}
    fixed = {term.var: nodes[key] for key, term in bound_terms.items() if key in nodes}
    evidence = Evidence(query, selects=True, steps=steps, fixed=fixed)
    numbers = dict.fromkeys(block.number for block in evidence.blocks)
    if len(numbers) != len(parts):
        return None
    for number, (record, _) in zip(numbers, parts, strict=True):
        evidence.look(record, (number,))
    plain = {key: without_choice(node) for key, node in nodes.items()}
    for row in evidence.rows():
        bound = {key: row.bound[term.var] for key, term in bound_terms.items()}
        if {key: BoundValue(one.record, one.node).json_id() for key, one in bound.items()} == plain:
            return _Reader(query, {record.docid: place for record, place in parts}, steps).reason(row, whole=whole)
    return None


def story_links(
    query: terms.ReadableQuery, members: Sequence[Record], steps: int
) -> Iterator[tuple[int, int, terms.Reason]]:
    """Yields the pairs by which the documents of a story joined it: a document, one before it, and why they match, by
    their indexes. `members` are in the order of joining. A document that made stories one has a pair for each. Takes at
    most twice `steps` steps; what is not found by then is left out."""
    evidence = Evidence(query, steps=steps)
    for record in members:
        evidence.look(record, range(len(query.blocks)))
    places: dict[int, int] = {record.docid: place for place, record in enumerate(members)}
    found: dict[tuple[int, int], EvidenceRow] = {}
    for row in evidence.result().rows:
        first, last = sorted((places[row.docids[0]], places[row.docids[-1]]))
        found.setdefault((last, first), row)
    reader, of_story = _Reader(query, places, steps), list(range(len(members)))
    for (last, first), row in sorted(found.items(), key=itemgetter(0)):
        if of_story[last] != of_story[first]:
            of_story = [of_story[first] if one == of_story[last] else one for one in of_story]
            yield last, first, reader.reason(row, whole=False)


class _Reader:
    """Reads the trail of a row. `places` maps documents to their indexes in the output."""

    def __init__(self, query: terms.ReadableQuery, places: Mapping[int, int], steps: int) -> None:
        self._query, self._places, self._take = query, places, terms.StepBudget(steps).take

    def reason(self, row: EvidenceRow, *, whole: bool) -> terms.Reason:
        joined: list[terms.JoinedValue] = []
        conditions: list[terms.ShownCondition] = []
        timings: list[terms.JoinTiming] = []
        for step in row.trail():
            if isinstance(step.of, BlockEvidence):
                continue
            join, bound = step.of.whole, {var: one for part in step.parts for var, one in part.bound.items()}
            times = [(part.t0, part.t1) for part in step.parts]
            assert join.op is not None, "what has parts is a join"
            if isinstance(step.of, AbsenceEvidence):
                operands = self._lacked(join, bound)
                conditions.append(terms.lacking(join.op, join.window, join.absent, operands, times[0]))
                continue
            for left, right in step.of.conjunct.equalities():
                joined.append(terms.JoinedValue(self._operand(bound, left), self._operand(bound, right)))
            for expr in step.of.conjunct.residual:
                operands = {term: self._operand(bound, term) for term in terms.operand_leaves(expr)}
                conditions.append(terms.ShownCondition(terms.in_parts(expr, operands.__getitem__)))
            timings.append(terms.JoinTiming(join.op, join.window, times[0], times[1]))
        if not whole:
            return terms.Reason(tuple(joined), tuple(conditions))
        return terms.Reason(tuple(joined), tuple(conditions), tuple(timings), tuple(self._filters(row)))

    def _operand(self, bound: Mapping[str, BoundNode], term: Term) -> terms.Operand:
        one = bound[term.var]
        return terms.operand_of(one.record.tree, one.node, term.functions, self._places[one.record.docid], one.text)

    def _lacked(self, join: NormalQuery | Hidden, bound: Mapping[str, BoundNode]) -> dict[Term, terms.Operand]:
        """Returns the values that nothing was joined to. A path with several nodes stays a path."""
        known, wanted = dict(bound), dict[Term, None]()
        for one in join.absent:
            wanted |= dict.fromkeys(term for expr in terms.compared(one) for term in terms.operand_leaves(expr))
        with suppress(terms.Exhausted):
            for branch in (branch for one in join.absent for branch in one.branches):
                record, node = bound[branch.var].record, bound[branch.var].node
                found = list(islice(each_below(PreparedNode(branch.path), record.tree, node, self._take), 2))
                for var, below in found[0] if len(found) == 1 else ():
                    known[var] = BoundNode(record, below, record.tree.string_value(*below))
        return {term: self._operand(known, term) for term in wanted if term.var in known}

    def _filters(self, row: EvidenceRow) -> Iterator[terms.ShownCondition]:
        """Yields the conditions on single documents while steps remain: the reason is valid without them."""
        with suppress(terms.Exhausted):
            for leaf in row.trail():
                if isinstance(leaf.of, BlockEvidence) and any(node.conditions for node in leaf.of.side.pattern.walk()):
                    yield from self._filters_of(leaf, leaf.of.side.pattern)

    def _filters_of(self, leaf: EvidenceRow, pattern: PatternNode) -> Iterator[terms.ShownCondition]:
        """Yields the conditions of a pattern with their values, for the first match with the row's nodes."""
        (record,), named = leaf.documents, _numbered(pattern)
        fixed = {path: leaf.bound[str(node.var)].node for path, node in paths(pattern) if node.var in leaf.bound}

        def operand(node: Node) -> terms.Operand:
            return terms.operand_of(record.tree, node, (), self._places[record.docid])

        def shown(expr: exp.Expr, path: PatternPath, at: Node) -> terms.ShownCondition:
            operands: dict[str, terms.Operand] = {}

            def name_of(rel: exp.Rel) -> exp.Expr:
                nodes = [at]
                if rel.steps:
                    branch = attach_branch(named, _name(path), self._query.builder.path(rel.steps, last_var="end"))
                    part = PreparedNode(naming(branch, ("end",)))
                    nodes = [node for ((_, node),) in each_binding(part, record.tree, {path: at}, self._take)]
                if not nodes:
                    return rel
                name, found = f"v{len(operands)}", list(map(operand, nodes))
                operands[name] = next((one for one in found if _holds(expr, rel, one.text)), found[0])
                return exp.VarPath(name)

            known = _with_values(expr, name_of)
            return terms.ShownCondition(terms.in_parts(known, lambda term: operands[term.var]))

        for found in islice(each_binding(PreparedNode(named), record.tree, fixed, self._take), 1):
            image = dict(found)
            for path, node in paths(pattern):
                at = image[_name(path)]
                for condition in node.conditions:
                    if condition.literal is not None:
                        yield terms.ShownCondition((operand(at), f" = {to_xscl(exp.String(condition.literal))}"))
                    elif (expr := self._query.conditions.get(str(condition.xpath))) is not None:
                        yield shown(expr, path, at)


def _is_test(expr: exp.Expr) -> bool:
    return isinstance(expr, exp.Compare) or (isinstance(expr, exp.Call) and expr.name in exp.TESTS)


def _holds(expr: exp.Expr, rel: exp.Rel, text: str) -> bool:
    mine = _with_values(expr, lambda one: exp.VarPath("v") if one is rel else one)
    is_known = _is_test(mine) and all(map(_is_value, exp.operands_of(mine)))
    return is_known and residual_holds(mine, lambda term: terms.apply_functions(text, term.functions))


def _is_value(operand: exp.Expr) -> bool:
    """Whether an operand has a value without the document: it has no other path."""
    while isinstance(operand, exp.Call) and exp.derivation(operand):
        operand = operand.args[0]
    return isinstance(operand, exp.VarPath | exp.String | exp.Number)


def _with_values(expr: exp.Expr, name_of: Callable[[exp.Rel], exp.Expr]) -> exp.Expr:
    """Replaces each path in a condition whose value is compared."""

    def value(operand: exp.Expr) -> exp.Expr:
        match operand:
            case exp.Rel():
                return name_of(operand)
            case exp.Call() if exp.derivation(operand):
                return exp.map_operands(operand, value)
        return operand

    if _is_test(expr):
        return exp.map_operands(expr, value)
    is_whole = not isinstance(expr, exp.And | exp.Or | exp.Not)
    return expr if is_whole else exp.map_operands(expr, lambda arg: _with_values(arg, name_of))


def _name(path: PatternPath) -> str:
    return "n" + ".".join(map(str, path))


def _numbered(node: PatternNode, path: PatternPath = ()) -> PatternNode:
    children = tuple(_numbered(child, (*path, place)) for place, child in enumerate(node.children))
    return replace(node, var=_name(path), children=children)


MAX_SHOWN_EVENTS = 5  # maximum number of events shown of a run or group


def explain_event(event: traced.Event, documents: Sequence[traced.DocumentRef]) -> tuple[terms.Filling, terms.Reason]:
    telling = _Telling(source_places(documents))
    telling.tell(event)
    reason = terms.Reason((), tuple(telling.conditions), (), tuple(telling.filters))
    return terms.Filling(tuple(telling.parts), tuple(telling.spans)), reason


class _Telling:
    def __init__(self, places: Mapping[traced.DocumentRef, int]) -> None:
        self._places = places
        self.parts: list[terms.FilledPart] = []
        self.spans: list[terms.PartDuration] = []
        self.conditions: list[terms.ShownCondition] = []
        self.filters: list[terms.ShownCondition] = []

    def tell(self, event: traced.Event, operator: str = "") -> None:
        match event.made:
            case traced.SourceEvent(stream=stream):
                self._fill(f"{operator} {stream}".lstrip(), [event])
            case traced.Derived(by=Next() | Fold() as by, inputs=(first, *rest)):
                self._tell_sequence(by, first, rest, event.made.steps, operator)
            case traced.Derived(by=Aggregate() as by, inputs=window):
                name = f"{operator} AGGREGATE of {traced.stream_text(by.source)}".lstrip()
                self._fill(name, window)
                if isinstance(by, Sessions):
                    self.spans.append(terms.PartDuration(name, window[-1].t1 - window[0].t1, None, None))
                elif by.over is not None:
                    self.spans.append(terms.PartDuration(name, event.t1 - window[0].t1, None, by.over))
            case traced.Derived(inputs=(source,)):
                self.tell(source, operator)
                self._tell_filter(event)

    def _tell_sequence(
        self,
        by: Next | Fold,
        first: traced.Event,
        rest: Sequence[traced.Event],
        steps: Sequence[Mapping[str, terms.Plain]],
        operator: str,
    ) -> None:
        """Describes the last step of a run; that of NEXT is its only one."""
        name = f"{algebra.operator_name(by)} {traced.stream_text(by.right)}"
        self.tell(first, operator)
        if isinstance(by, Next):
            self.tell(rest[-1], algebra.operator_name(by))
        else:
            self._fill(name, rest)
            self._tell_filter(rest[-1])
        latest, values = ([first, *rest][-2], [first.values, *steps][len(rest) - 1])
        scope = traced.step_scope(first, latest, rest[-1], values)
        for condition in (by.condition,) if isinstance(by, Next) else (by.chooses, by.continues):
            self.conditions += (shown(by, one, scope) for one in traced.conjuncts(condition))
        self.spans.append(terms.PartDuration(name, rest[-1].t1 - first.t0, rest[-1].t0 - latest.t1, by.within))

    def _tell_filter(self, event: traced.Event) -> None:
        match event.made:
            case traced.Derived(by=Filter() as by, inputs=(source,)):
                self.filters += (shown(by, one, traced.own_scope(source)) for one in traced.conjuncts(by.condition))

    def _fill(self, name: str, events: Sequence[traced.Event]) -> None:
        self.parts.append(build_part(name, events, self._places))


def source_places(documents: Sequence[traced.DocumentRef]) -> dict[traced.DocumentRef, int]:
    return {source: place for place, source in reversed([*enumerate(documents)])}


def build_part(name: str, events: Sequence[traced.Event], places: Mapping[traced.DocumentRef, int]) -> terms.FilledPart:
    shown = list(events) if len(events) <= MAX_SHOWN_EVENTS else [events[0], *events[1 - MAX_SHOWN_EVENTS :]]
    return terms.FilledPart(name, len(events), tuple(_seen(event, places) for event in shown))


def _seen(event: traced.Event, places: Mapping[traced.DocumentRef, int]) -> terms.ShownEvent:
    own = tuple(places[source] for source in _behind(event) if source in places)
    seen = terms.ShownEvent(tuple(event.values.items()), event.t0, event.t1, own)
    while isinstance(event.made, traced.Derived) and isinstance(event.made.by, Filter):
        (event,) = event.made.inputs
    if isinstance(event.made, traced.SourceEvent) and event.made.output:
        return replace(seen, output=event.made.source[0], query=event.made.stream)
    return seen


def shown(operator: Stream, condition: EventCondition, scope: traced.ValueScope) -> terms.ShownCondition:
    """Returns a condition that held as reasons show it, with texts like those of nodes."""

    def written(part: str | traced.NamedValue) -> str | terms.Operand:
        if isinstance(part, str):
            return part
        return terms.Operand(part.name, part.value) if isinstance(part.value, str) else f"{part.name} {part.text}"

    return terms.ShownCondition(tuple(map(written, traced.said(condition, operator, scope))))


_NAME = re.compile(r"(\w+)(?:\[(\d+)\])?(?:\.e\d+)?")


def match_slots(nodes: Mapping[str, int | str]) -> dict[tuple[str, int], set[int | str]]:
    """Returns the events of a match by variable or letter and index there, from 0: the nodes of each in the output, of
    which a published event has several.

    >>> match_slots({"p[1]": 0, "q.e1": 3, "p[2]": 1, "q.e2": 0})
    {('p', 0): {0}, ('q', 0): {0, 3}, ('p', 1): {1}}
    """
    found: dict[tuple[str, int], set[int | str]] = {}
    for name, node in nodes.items():
        match = _NAME.fullmatch(name)
        assert match is not None, "a PATTERN names its nodes so"
        found.setdefault((match[1], int(match[2] or 1) - 1), set()).add(node)
    return found


def output_match(
    pattern: Pattern | NearPattern, given: GivenEvents, output: Output, take: Take
) -> traced.MatchBindings | None:
    """Returns a match with the events in an output; None if there is none. `take` is called with the steps done."""
    sources = set(zip(output.documents, output.streams, strict=True))
    documents, slots = sorted(sources), match_slots(output.nodes)

    def own(name: str) -> list[traced.Event]:
        return [one for one in given(name) if one.t0 >= output.t0 and _behind(one).keys() <= sources]

    def fits(partial: Partial, one: traced.Event, to: int) -> bool:
        name = search.name(one, to)
        place = len(search.match(partial).get(name, ()))
        return slots.get((name, place)) == {root for part in traced.given_parts(one) for root in part.roots}

    if isinstance(pattern, Pattern):  # what it was chosen from is perhaps not kept
        pattern = replace(pattern, strategy="any", maximal=False)
    search = search_of(pattern, own, SearchGoal(traced.Covering(documents).of, range(len(documents)), take))
    search.fits, search.kills = fits, {}
    for partial in search.results():
        events = list(partial.events())
        if len(events) == len(slots) and min(one.t0 for one in events) == output.t0:
            return search.match(partial)
    return None


def tested(
    pattern: Pattern | NearPattern, match: traced.MatchBindings
) -> Iterator[tuple[EventCondition, traced.ValueScope]]:
    """Yields the conditions on a match, HAVING last, with the values of their names, for each event in order."""
    if isinstance(pattern, Pattern):
        for asked in [*(traced.conjunct_of(pattern, one) for one in pattern.conjuncts), *traced.having_of(pattern)]:
            yield from ((asked.said, scope) for scope in asked.scopes(match))


def known_at(pattern: Pattern | NearPattern, match: traced.MatchBindings) -> int:
    every = [one for events in match.values() for one in events]
    if isinstance(pattern, Pattern) and pattern.is_late and pattern.within is not None:
        return min(one.t0 for one in every) + pattern.within
    return max(one.t1 for one in every)


def _behind(event: traced.Event) -> dict[traced.DocumentRef, None]:
    return {source: None for part in traced.given_parts(event) for source in part.behind}
