"""The evidence of a query: evaluates its normal form over given documents, block by block and join by join. Each row
keeps the rows that it was made of, and each stage what passes it; funnels, why-not and reasons read these. It shares
the algebra with the engine, but none of its indexes. Of a predicate's disjuncts, it reports the furthest."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import groupby, islice, product
from typing import NamedTuple

from common.tools import gathered
from mmqjp.answers.bindings import node_order, residual_holds, text_of_operand, without_choice
from mmqjp.answers.output import Mirrors
from mmqjp.answers.quota import OutOfSteps, Steps
from mmqjp.documents.record import Inputs, Record
from mmqjp.explain import terms
from xpath_stage.binder import Node, PatternPath, PreparedNode, Take, each_below, each_binding
from xpath_stage.documents import ParsedDocument
from xpath_stage.filters import tree_value
from xscl.algebra import joins
from xscl.algebra.near import BY_WORDS, LEAST_SIMILAR, is_weighed, word_level
from xscl.algebra.values import NOWHERE, Call, Expr, Span, String, many_valued, reads_tree
from xscl.lower import require
from xscl.printer import to_xscl

MOST_ROWS, STEPS_FOR_A_ROW, MOST_PAIRS = 5_000, 50, 200_000
"""Maximum number of bindings of a document in a join (a document with more is left out), the steps that each counts
for, because it takes memory, and the maximum number of pairs of rows examined per join."""

FOR_HINTS, MOST_BYTES_FOR_HINTS = 100, 256 << 10
"""Maximum number of furthest documents searched for hints, and their size in bytes; a larger one is searched alone."""

STEPS, LEAST_STEPS, STEPS_FOR_A_DOCUMENT = 6_000_000, 300_000, 300_000
"""Step limits: for all queries of a request, at least for each query, and for each document."""


def steps_for(queries: int) -> int:
    return max(STEPS // max(queries, 1), LEAST_STEPS)


_Told = tuple[str, str]  # a message, and a hint


@dataclass(frozen=True, slots=True, eq=False)
class BoundNode:
    record: Record
    node: Node
    text: str

    def value(self, functions: tuple[str, ...]) -> str:
        if reads_tree(functions):
            return tree_value(self.record.tree, self.node, functions)
        return terms.apply_functions(self.text, functions)


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceRow:
    """The nodes in the documents of an input, of one or more blocks, for the variables that matter outside. `t0` and
    `t1` are its interval, `of` the input, and `parts` the rows that were joined."""

    documents: tuple[Record, ...]
    t0: int
    t1: int
    bound: Mapping[str, BoundNode]
    of: BlockEvidence | JoinEvidence | AbsenceEvidence
    parts: tuple[EvidenceRow, ...] = ()

    @property
    def docids(self) -> tuple[int, ...]:
        return tuple(record.docid for record in self.documents)

    def trail(self) -> Iterator[EvidenceRow]:
        """Yields the rows behind it, those of inner joins first, and itself."""
        for part in self.parts:
            yield from part.trail()
        yield self


RowPair = tuple[EvidenceRow, EvidenceRow]
_Rows = Sequence[EvidenceRow]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage and what passes it; if nothing does, `told` says why. `span` is that of its part in the query's text."""

    counted: terms.FunnelStage
    told: _Told | Callable[[], _Told]
    span: Span = NOWHERE

    def shown(self) -> terms.FunnelStage:
        if self.counted.found:
            return self.counted
        return self.counted.told(*(self.told() if callable(self.told) else self.told))


@dataclass(frozen=True, slots=True)
class Passing:
    """What passes an input, or a query. `stages` are in evaluation order, inner joins first; `rows` pass all. If there
    are none, `before` returns pairs that pass all but the last stage of a join, the nearest first. `ties` counts pairs
    of the last join out of order only because of equal times. `left_out` documents are too large to search;
    `incomplete`: the step limit was reached. `rank` says how far documents get: the input of a join or the join itself,
    and the stage there. For an absence `partners` is what passes its left input and a partner."""

    stages: tuple[Stage, ...] = ()
    rows: tuple[EvidenceRow, ...] = ()
    before: Callable[[], Iterable[RowPair]] = tuple
    ties: int = 0
    left_out: int = 0
    incomplete: bool = False
    rank: tuple[int, ...] = ()
    partners: Passing | None = None

    @property
    def failed(self) -> Stage | None:
        return next((stage for stage in self.stages if not stage.counted.found), None)

    @property
    def found(self) -> int:
        return len({row.docids for row in self.rows})

    def shown(self, last: Stage | None = None) -> tuple[terms.FunnelStage, ...]:
        """Returns the stages in words, up to one of them."""
        stages = self.stages if last is None else self.stages[: self.stages.index(last) + 1]
        return tuple(stage.shown() for stage in stages)


@dataclass(eq=False)
class BlockEvidence:
    """What documents have of one block. `left_out` counts those too large to search. Variables that are `needed` are
    bound in `rows`. With `fixed`, the nodes of some in an output's line, no stages are counted."""

    query: terms.ReadableQuery
    number: int
    side: joins.Side
    needed: Collection[str] = ()
    fixed: Mapping[str, int | str] | None = None
    rows: list[EvidenceRow] = field(default_factory=list)
    left_out: int = 0

    def __post_init__(self) -> None:
        self._whole = PreparedNode(joins.naming(self.side.pattern, self.needed))
        self._streams, self._reached = Counter[str](), Counter[int]()
        self._sample: list[ParsedDocument] = []

    @property
    def stages(self) -> list[terms.BlockStage]:
        return self.query.stages[self.number]

    @cached_property
    def _asked(self) -> list[_Asked]:
        query, found = self.query, list[_Asked]()
        whole = query.builder.path(query.blocks[self.number].steps, joins.block_root(self.number))
        known = {(node.var, condition) for node in whole.walk() for condition in node.conditions}
        for var, conditions, above in _named(self.side.pattern):
            text = query.variable(var)
            if var in query.paths:
                whole = joins.attach_branch(whole, above, query.builder.path(query.paths[var].steps, last_var=var))
                hint = f"{text} is in the predicate or SELECT, so each match must have it"
                found.append(_Asked(text, f"there is no {text}", whole, hint))
            for condition in (condition for condition in conditions if (var, condition) not in known):
                whole = require(whole, var, condition)
                if condition.literal is not None:
                    value = to_xscl(String(condition.literal))
                    found.append(_Asked(f"{text} = {value}", f"{text} is not {value}", whole))
                else:
                    xpath = str(condition.xpath)
                    why = f"{text} is no {'time' if 'time' in xpath else 'number'}, and equals nothing"
                    why = f"SELECT finds nothing in {text}" if "values(" in xpath else why
                    found.append(_Asked(text, why, whole))
        return found

    @cached_property
    def _parts(self) -> list[PreparedNode]:
        patterns = (self.query.builder.path(stage.steps) for stage in self.stages)
        return [PreparedNode(joins.naming(part, ())) for part in (*patterns, *(asked.pattern for asked in self._asked))]

    def look(self, record: Record, take: Take) -> None:
        """Evaluates a document. Raises what `take` does; but TooLong, unless nodes are fixed, leaves it out."""
        self._streams[record.stream] += 1
        if record.stream != self.side.stream:
            return
        if self.fixed is not None:
            self.rows += self._found(record, take)
            return
        try:
            found = list(self._found(record, take))
            reached = len(self._parts) if found else self._furthest(record.tree, take)
        except terms.TooLong:
            self.left_out += 1
            return
        self.rows += found
        furthest = max(self._reached, default=0)
        if reached > furthest:
            self._sample.clear()
        is_fit = not self._sample or (record.tree.size <= MOST_BYTES_FOR_HINTS and len(self._sample) < FOR_HINTS)
        if not found and reached >= furthest and is_fit:
            self._sample.append(record.tree)
        self._reached[reached] += 1

    def _found(self, record: Record, take: Take) -> Iterator[EvidenceRow]:
        fixed = dict(_fixed(self.side.pattern, record, self.fixed)) if self.fixed else {}
        texts: dict[Node, str] = {}
        for number, binding in enumerate(each_binding(self._whole, record.tree, fixed, take)):
            if number == MOST_ROWS:
                raise terms.TooLong
            take(STEPS_FOR_A_ROW)
            for _, node in binding:
                if node not in texts:
                    texts[node] = record.tree.string_value(*node)
                    take(1 + len(texts[node]) // terms.CHARACTERS_PER_STEP)
            bound = {var: BoundNode(record, node, texts[node]) for var, node in binding}
            yield EvidenceRow((record,), record.t0, record.t1, bound, self)

    def _furthest(self, tree: ParsedDocument, take: Take) -> int:
        """How many of the ever stricter stages a document passes, but not all."""

        def fails(part: PreparedNode) -> bool:
            return not any(True for _ in each_binding(part, tree, {}, take))

        return bisect_left(self._parts[:-1], True, key=fails)

    def counts(self) -> list[int]:
        """How many documents pass each stage, up to the last that one might."""
        reached = self._reached.items()
        return [sum(count for last, count in reached if last > number) for number in range(len(self._parts))]

    def result(self, take: Take) -> Passing:
        told = tuple(self.told()) if self.fixed is None else ()
        return Passing(told, tuple(self.rows), rank=(len(told) - (not self.rows),))

    def told(self) -> Iterator[Stage]:
        """Yields the stages up to the first that no document passes."""
        stream, documents = self.side.stream, self._streams[self.side.stream]
        block, span = self.number + 1, self.query.blocks[self.number].span
        named = Span(span.start, max(self.stages[0].span.end, span.start + len(stream)))
        yield Stage(terms.FunnelStage("stream", stream, documents, block=block), self._no_document, named)
        if not documents:
            return
        for number, found in enumerate(self.counts()):
            if number < len(self.stages):
                at = self.stages[number].span
                counted = terms.FunnelStage("pattern", self.query.part(at), found, block=block)
                yield Stage(counted, partial(self._none_matches, number), at)
            else:
                asked = self._asked[number - len(self.stages)]
                counted = terms.FunnelStage("asked", asked.text, found, block=block)
                yield Stage(counted, (f"{asked.missing} in {self._where()}", asked.hint), span)
            if not found:
                return

    def _no_document(self) -> _Told:
        others = ", ".join(f"{stream} ({count:,})" for stream, count in self._streams.most_common(5))
        if sum(self._streams.values()) == 1:
            return f"the document is of stream {next(iter(self._streams))}, not of {self.side.stream}", ""
        what = f"there is no document of stream {self.side.stream}"
        return what, f"there are documents of {others}" if others else ""

    def _none_matches(self, number: int) -> _Told:
        stage, before = self.stages[number], ""
        if number:
            does = "does" if self._streams[self.side.stream] == 1 else f"matches {self.counts()[number - 1]:,}"
            before = f"; {self.query.part(self.stages[number - 1].span)}, before it, {does}"
        hints = terms.PathHints(self.query.builder, self._sample)
        hint = hints.of(stage.above, stage.condition) if self._sample else ""
        return f"{self.query.part(stage.span)} does not match {self._where()}{before}", hint

    def _where(self) -> str:
        stream, documents = self.side.stream, self._streams[self.side.stream]
        if documents == 1:
            return f"the document of stream {stream}"
        too_large = f" ({self.left_out:,} are too large to search)" if self.left_out else ""
        return f"any of {documents:,} documents of stream {stream}{too_large}"


def paths(node: joins.PatternNode, path: PatternPath = ()) -> Iterator[tuple[PatternPath, joins.PatternNode]]:
    """Yields the nodes of a pattern, and which children lead there."""
    yield path, node
    for place, child in enumerate(node.children):
        yield from paths(child, (*path, place))


def _fixed(
    pattern: joins.PatternNode, record: Record, nodes: Mapping[str, int | str]
) -> Iterator[tuple[PatternPath, Node]]:
    for path, node in paths(pattern):
        if node.var is not None and node.var in nodes:
            element, attribute = node_order(without_choice(nodes[node.var]))
            if not attribute:
                yield path, (element, 0)
            elif element < len(record.tree.elements):
                names = [str(name) for name in record.tree.elements[element].attrib]
                if attribute[1:] in names:
                    yield path, (element, names.index(attribute[1:]) + 1)


class _Asked(NamedTuple):
    """What predicates or SELECT need of a block: the `pattern` with it and those before, and why it is not met."""

    text: str
    missing: str
    pattern: joins.PatternNode
    hint: str = ""


def _named(node: joins.PatternNode, above: str = "") -> Iterator[tuple[str, Sequence[joins.Condition], str]]:
    """Yields the variables of a pattern, each with its conditions and the nearest variable above it."""
    if node.var is not None:
        yield node.var, node.conditions, above
    for child in node.children:
        yield from _named(child, node.var or above)


_DIFFER = {"lower-case": "case", "normalize-space": "spaces", "canonical-url": "the form of the address"}
"""How texts differ that a function makes equal."""

_NO_WORDS = "no text of one side has a word in common with one of the other", ""

_DONE = 9, 0  # the rank of documents that pass all stages


@dataclass(frozen=True, slots=True)
class _Test:
    """A stage after the equalities: its rank, the pairs that pass, the words if none of some does, and their order."""

    kind: terms.StageKind
    rank: tuple[int, int]
    part: str
    passes: Callable[[RowPair], bool]
    told: Callable[[Sequence[RowPair]], _Told]
    order: Callable[[RowPair], Fraction | int] = field(default=lambda pair: distance(pair))


@dataclass(eq=False)
class JoinEvidence:
    """A conjunctive query over two inputs. `kept` are the variables that matter outside."""

    query: terms.ReadableQuery
    whole: joins.NormalQuery | joins.Hidden
    conjunct: joins.Conjunct
    left: _Input
    right: _Input
    kept: Collection[str]
    span: Span

    def __post_init__(self) -> None:
        self.op, self.window, self._is_single = self.whole.op, self.whole.window, False
        self.op = joins.NEGATED.get(self.op, self.op)  # partners are joined
        self._are_blocks = all(side.hidden is None for side in self.conjunct.sides())

    def result(self, take: Take) -> Passing:
        left, right = self.left.result(take), self.right.result(take)
        stages = left.stages + right.stages
        for place, input in enumerate((left, right)):
            if not input.rows:
                return Passing(stages, (), input.before, input.ties, rank=(place, *input.rank))
        found = self._tried(left.rows, right.rows, take)
        return replace(found, stages=stages + found.stages, rank=(2, *found.rank))

    def _row(self, pair: RowPair) -> EvidenceRow:
        left, right = pair
        bound = {var: bound for row in pair for var, bound in row.bound.items() if var in self.kept}
        documents = (*left.documents, *right.documents)
        return EvidenceRow(documents, min(left.t0, right.t0), max(left.t1, right.t1), bound, self, pair)

    def _tried(self, lefts: _Rows, rights: _Rows, take: Take) -> Passing:
        """Joins rows, stage by stage up to the first that no pair passes."""
        self._is_single = len({row.docids for row in lefts}) == len({row.docids for row in rights}) == 1
        stages: list[Stage] = []
        for number, pair in enumerate(self.conjunct.equalities()):
            equality = _Equality(self, pair, lefts, rights, take)
            stages.append(equality.stage)
            if not equality.common:
                before = partial(_in_order, equality.nearest_pairs, distance)
                return Passing(tuple(stages), before=before, rank=(0, number))
        words, every = self._by_words(), _joined(self.conjunct, lefts, rights, take)
        if words and not self.conjunct.equalities() and len(lefts) * len(rights) > MOST_PAIRS:
            every = self._near(lefts, rights, take)
        if not self._is_single and self._are_blocks:
            every = filter(_are_different, every)
        pairs = list(islice(every, MOST_PAIRS))
        is_cut = len(pairs) == MOST_PAIRS and any(True for _ in every)
        if len(self.conjunct.equalities()) > 1 or not (pairs or words):
            text = " and ".join(map(self.equality, self.conjunct.equalities())) or "two documents"
            counted = terms.FunnelStage("together", text, _choices(pairs), "pairs", at_least=is_cut)
            apart = "each equality holds for some nodes, but not all of them for the same nodes", ""
            stages.append(Stage(counted, apart, self.span))
            if not pairs:
                return Passing(tuple(stages), rank=(1, 0))
        ties = 0
        for test in self._tests(take, words):
            passed = [pair for pair in pairs if test.passes(pair)]
            counted = terms.FunnelStage(test.kind, test.part, _choices(passed), "pairs", at_least=is_cut)
            stages.append(Stage(counted, partial(test.told, pairs), self.span))
            if test.kind == "order":
                ties = self._ties(pairs, take)
            if not passed:
                return Passing(tuple(stages), (), partial(sorted, pairs, key=test.order), ties, rank=test.rank)
            pairs = passed
        return Passing(tuple(stages), tuple(map(self._row, pairs)), ties=ties, rank=_DONE)

    def equality(self, pair: tuple[joins.Term, joins.Term]) -> str:
        return " = ".join(map(self.query.term, pair))

    def _tests(self, take: Take, words: Sequence[Call]) -> Iterator[_Test]:
        op, window = str(self.op), self.window
        for number, expr in enumerate(words):
            part = terms.part_in_common(expr.name)
            told, order = partial(_unlike, expr), lambda pair, expr=expr, part=part: -part(*_texts(expr, pair))
            yield _Test("words", (2, number), self.query.expression(expr), partial(_holds, expr, take), told, order)
        if op == "FOLLOWED BY":
            yield _Test("order", (3, 0), op, lambda pair: pair[0].t1 < pair[1].t0, self._out_of_order)
        elif self._are_blocks and self._is_single:
            same = "both sides are the same document, and a join is of two different ones", ""
            yield _Test("different", (3, 0), op, _are_different, lambda _: same)
        if window is not None:
            yield _Test("window", (4, 0), terms.format_window(window), self._within, self._too_far)
        for number, other in enumerate(one for one in self.conjunct.residual if one not in words):
            passes, is_false = partial(_holds, other, take), partial(self._is_false, other)
            yield _Test("residual", (5, number), self.query.expression(other), passes, is_false)
        # Those that may have the mirror of a match: an inner join's without outer restrictions.
        alternatives = self.whole.alone if isinstance(self.whole, joins.Hidden) else self.whole.conjuncts
        if op == joins.UNORDERED and (mirror := joins.mirror_of(alternatives)) is not None:
            mirrors = Mirrors()

            def is_told_so(pair: RowPair) -> bool:
                try:
                    inputs = Inputs((pair[0].documents[0], pair[1].documents[0]))
                    return not mirrors.tell(mirror, inputs, Steps(terms.MAX_SAMPLE_STEPS))
                except OutOfSteps:
                    return True

            mirrored = "it holds in both orders and gives one output, in the other order", ""
            yield _Test("mirror", (6, 0), op, is_told_so, lambda _: mirrored)

    def _by_words(self) -> list[Call]:
        """The conditions that compare the words of a text of one side with those of one of the other."""
        side = {var: place for place, side in enumerate(self.conjunct.sides()) for var in side.variables()}
        calls = (one for one in self.conjunct.residual if isinstance(one, Call) and one.name in BY_WORDS)
        return [one for one in calls if len({side.get(var) for var in joins.variables_of(one)}) == 2]

    def _near(self, lefts: _Rows, rights: _Rows, take: Take) -> Iterator[RowPair]:
        """Yields the pairs of rows whose texts may be as near as they are joined, and then others with words in common;
        of both first those that share a rare word."""
        level = many_valued(self.conjunct.joins[0][0].functions) or ""
        least = word_level("similar" if is_weighed(level) else "near", str(float(LEAST_SIMILAR)))
        met = set[tuple[int, int]]()
        for some in (level, least):
            ours, theirs = (
                gathered((key, row) for row in rows for key in _keys(row, term, some, take))
                for rows, term in zip((lefts, rights), self.conjunct.joins[0], strict=True)
            )
            for key in sorted(ours.keys() & theirs.keys(), key=lambda key: (len(ours[key]) * len(theirs[key]), key)):
                for pair in product(ours[key], theirs[key]):
                    if (which := (id(pair[0]), id(pair[1]))) not in met:
                        take(1)
                        met.add(which)
                        yield pair

    def _within(self, pair: RowPair) -> bool:
        return self.window is None or distance(pair) <= self.window

    def _too_far(self, pairs: Sequence[RowPair]) -> _Told:
        nearest = min(map(distance, pairs))
        whose = "they are" if len(pairs) == 1 else "the nearest are"
        return f"{whose} {terms.duration_text(nearest)} apart, and the window is {terms.format_window(self.window)}", ""

    def _out_of_order(self, pairs: Sequence[RowPair]) -> _Told:
        if any(_is_tie(*pair) and self._within(pair) for pair in pairs):
            what = "the right one begins just when the left one ends, and FOLLOWED BY takes only what is later"
            return what, "JOIN takes equal times, too"
        gap = min(left.t1 - right.t0 for left, right in pairs)
        if gap <= 0:
            return "the left one has not ended when the right one begins", "JOIN takes either order"
        return f"the right one begins {terms.duration_text(gap)} before the left one ends", "JOIN takes either order"

    def _is_false(self, expr: Expr, pairs: Sequence[RowPair]) -> _Told:
        bound = {var: one for row in pairs[0] for var, one in row.bound.items()}
        shown = ((self.query.term(term), bound[term.var].value(term.functions)) for term in terms.operand_leaves(expr))
        found = (f'{text} is "{terms.truncate_value(of)}"' for text, of in shown)
        hint = "" if len(self.conjunct.residual) == 1 else "for other nodes, another condition is false"
        return f"{self.query.expression(expr)} is false: {', '.join(found)}", hint if len(pairs) > 1 else ""

    def _ties(self, pairs: Iterable[RowPair], take: Take) -> int:
        """Counts pairs of documents, in either order, that fail only because of equal times."""
        near = (pair for pair in pairs if _is_tie(*pair) and self._within(pair))
        ties = (pair for pair in near if all(_holds(expr, take, pair) for expr in self.conjunct.residual))
        return len({tuple(sorted((left.docids, right.docids))) for left, right in ties})


class _Equality:
    """An equality over the rows of both inputs; if no value satisfies it, what is nearest to that."""

    def __init__(
        self, join: JoinEvidence, pair: tuple[joins.Term, joins.Term], lefts: _Rows, rights: _Rows, take: Take
    ) -> None:
        self._join, self._terms, self._rows, self._take = join, pair, (lefts, rights), take
        self._left, self._right = values = terms.DocumentsByText(), terms.DocumentsByText()
        for rows, term, found in zip(self._rows, pair, values, strict=True):
            for row in rows:
                terms.note(found, _value(row, term, take), [row.docids])
        left, right = values
        self.common = len(left.keys() & right.keys()) if join._is_single else terms.shared(left, right)
        counted = terms.FunnelStage("equality", join.equality(pair), self.common, "values", 0, len(left), len(right))
        self.stage = Stage(counted, self._unequal, join.span)

    @cached_property
    def _near(self) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
        """The functions that would equate values, and the values nearest to each other."""
        functions = terms.mended(self._left, self._right)
        return functions, list(islice(terms.near_values(self._left, self._right, functions), terms.MOST_NEAR))

    def nearest_pairs(self) -> Iterator[RowPair]:
        for near in self._near[1]:
            lefts, rights = (
                list(islice((row for row in rows if _value(row, term, self._take) == value), terms.MOST_NEAR))
                for rows, term, value in zip(self._rows, self._terms, near, strict=True)
            )
            yield from islice(filter(_are_different, product(lefts, rights)), terms.MOST_NEAR)

    def _unequal(self) -> _Told:
        left, right = self._left, self._right
        nodes = (node for side in terms.leaf_sides(self._join.conjunct) for node in side.pattern.walk())
        names = {node.var: node.test.local for node in nodes}
        one, other = (names.get(term.var, "value") for term in self._terms)
        functions, nearest = self._near
        if functions and nearest:
            differ = " and ".join(_DIFFER[name] for name in functions)
            shown, against = map(terms.truncate_value, nearest[0])
            what = f'{one} "{shown}" and {other} "{against}" differ only in {differ}'
            return what, f"use {', '.join(functions)} on both sides"
        near = terms.near_instead(left, right, *map(self._join.query.term, self._terms))
        if self._join._is_single:
            return near or (f"{one} {_shown(left)} on the left, {other} {_shown(right)} on the right", "")
        for name, values, others in ((one, left, right), (other, right, left)):
            if len(values) <= terms.MOST_NEAR < len(others):
                return f"no other document has {name} {_shown(values)} among {len(others):,} values", ""
        counts = f"{len(left):,} of {one} on the left, {len(right):,} of {other} on the right"
        return near or (f"no two documents share a value: {counts}", "")


def _shown(values: terms.DocumentsByText) -> str:
    listed = [f'"{terms.truncate_value(value)}"' for value in list(values)[:3]]
    return ", ".join(listed) + (f" and {len(values) - 3:,} more" if len(values) > 3 else "")


def _joined(
    conjunct: joins.Conjunct, lefts: Iterable[EvidenceRow], rights: Iterable[EvidenceRow], take: Take
) -> Iterator[RowPair]:
    """Yields the pairs of rows that satisfy all equalities."""
    ours, theirs = ([pair[place] for pair in conjunct.equalities()] for place in (0, 1))
    by_values = gathered((tuple(_value(row, term, take) for term in theirs), row) for row in rights)
    for row in lefts:
        for other in by_values.get(tuple(_value(row, term, take) for term in ours), ()):
            take(1)
            yield row, other


def _value(row: EvidenceRow, term: joins.Term, take: Take) -> str:
    bound = row.bound[term.var]
    take(1 + len(bound.text) // terms.CHARACTERS_PER_STEP)
    return bound.value(term.functions)


def _holds(expr: Expr, take: Take, pair: RowPair) -> bool:
    def text_of(term: joins.Term) -> str:
        bound = pair[0].bound.get(term.var) or pair[1].bound[term.var]
        take(1 + len(bound.text) // terms.CHARACTERS_PER_STEP)
        return bound.value(term.functions)

    return residual_holds(expr, text_of)


def _keys(row: EvidenceRow, term: joins.Term, level: str, take: Take) -> list[str]:
    """The keys of a text that is joined by its words."""
    return terms.keys_of(_value(row, replace(term, functions=term.functions[:-1]), take), level)


def _texts(expr: Call, pair: RowPair) -> tuple[str, str]:
    """The texts that near() or similar() compares."""
    bound = {**pair[0].bound, **pair[1].bound}
    one, other = (text_of_operand(arg, lambda term: bound[term.var].value(term.functions)) for arg in expr.args[:2])
    return one, other


def _unlike(expr: Call, pairs: Sequence[RowPair]) -> _Told:
    return (terms.nearness(expr.name, (_texts(expr, pair) for pair in pairs)), "") if pairs else _NO_WORDS


def _in_order(pairs: Callable[[], Iterable[RowPair]], order: Callable[[RowPair], int]) -> list[RowPair]:
    return sorted(pairs(), key=order)


def _choices(pairs: Iterable[RowPair]) -> int:
    return len({(left.docids, right.docids) for left, right in pairs})


def distance(pair: RowPair) -> int:
    left, right = pair
    return max(left.t1, right.t1) - min(left.t0, right.t0)


def _are_different(pair: RowPair) -> bool:
    return pair[0].docids != pair[1].docids


def _is_tie(left: EvidenceRow, right: EvidenceRow) -> bool:
    """Whether one input ends as the other begins, and they share no documents."""
    sources = [{source for record in row.documents for source in record.sources} for row in (left, right)]
    return left.t1 == right.t0 and not sources[0] & sources[1]


@dataclass(eq=False)
class _Branched:
    """Rows `found` of an absence's left input, with nodes on paths of a predicate: each is part of those it gives."""

    query: terms.ReadableQuery
    absent: joins.Absent
    found: Passing = field(default_factory=Passing)

    def result(self, take: Take) -> Passing:
        rows, stages = [replace(row, parts=(row,)) for row in self.found.rows], list(self.found.stages)
        for branch in self.absent.branches:
            text = " and ".join(map(self.query.variable, branch.path.variables()))
            part, before, rows = PreparedNode(branch.path), rows, []
            for _, some in groupby(before, partial(_docid_at, branch.var)):
                for row in some:
                    at = row.bound[branch.var]
                    tree = at.record.tree
                    for binding in each_below(part, tree, at.node, take):
                        take(STEPS_FOR_A_ROW)
                        more = {name: BoundNode(at.record, node, tree.string_value(*node)) for name, node in binding}
                        rows.append(replace(row, bound={**row.bound, **more}))
                at.record.__dict__.pop("tree", None)
            counted = terms.FunnelStage("asked", text, len({row.docids for row in rows}), block=1)
            stages.append(Stage(counted, (f"there is no {text}", "")))
            if not rows:
                break
        return replace(self.found, stages=tuple(stages), rows=tuple(rows), rank=(len(stages),))


def _docid_at(var: str, row: EvidenceRow) -> int:
    return row.bound[var].record.docid


@dataclass(eq=False)
class AbsenceEvidence:
    """An input whose rows have no partner: none of `partners` joins them to another input."""

    whole: joins.NormalQuery | joins.Hidden
    left: _Input
    partners: Disjuncts
    lefts: Sequence[_Branched]

    def result(self, take: Take) -> Passing:
        left = self.left.result(take)
        if not left.rows:
            return replace(left, rank=(0, *left.rank))
        for branched in self.lefts:
            branched.found = left
        partners = self.partners.result(take) if self.partners else Passing()
        place = self.whole.op == "NOT PRECEDED BY"  # the partner is on the left of the join
        having = {id(row.parts[place].parts[0]) for row in partners.rows}
        op, window = self.whole.op, self.whole.window or 0
        assert op is not None, "an absence is a join"
        lone = (row for row in left.rows if id(row) not in having)
        rows = tuple(replace(row, t1=joins.over_at(op, window, row.t0, row.t1), of=self, parts=(row,)) for row in lone)
        counted = terms.FunnelStage("alone", op, len({row.docids for row in rows}))
        alone = Stage(counted, ("each of them has a partner among stored documents", ""))
        return replace(left, stages=(*left.stages, alone), rows=rows, rank=(1, bool(rows)), partners=partners)


class Disjuncts(list["_Input"]):
    """The conjunctive queries of a query or of an inner join, or the only input of a filter or an absence."""

    def result(self, take: Take) -> Passing:
        results = [join.result(take) for join in self]
        best = max(results, key=lambda result: (result.rank, result.found))
        return replace(best, rows=tuple(row for result in results for row in result.rows))


_Input = BlockEvidence | JoinEvidence | AbsenceEvidence | Disjuncts | _Branched


class Evidence:
    """Evaluates a query over single documents. With `selects`, its rows also bind SELECT and ONCE variables; they
    always bind those in `keep`. `fixed` has the nodes of variables of an output whose `rows` explain it."""

    def __init__(
        self,
        query: terms.ReadableQuery,
        *,
        selects: bool = False,
        keep: Collection[str] = (),
        steps: int = STEPS,
        fixed: Mapping[str, int | str] | None = None,
    ) -> None:
        self.query, self._steps, self._work = query, steps, terms.StepBudget(steps)
        self._fixed, self._is_incomplete = fixed, False
        self._blocks: dict[tuple[int, joins.PatternNode], BlockEvidence] = {}
        normal, kept = query.normal, set(keep)
        if selects:
            kept |= {entry.value.var for entry in normal.entries if isinstance(entry.value, joins.Term)}
            kept |= {var for key in (normal.once.keys if normal.once else ()) for var in joins.variables_of(key)}
        self._top = self._joins(normal, kept, 0)

    @property
    def blocks(self) -> list[BlockEvidence]:
        """The blocks in order, each once per pattern in a disjunct; without absences' if an output is explained."""
        return [self._blocks[key] for key in sorted(self._blocks, key=lambda key: key[0])]

    def look(self, record: Record, blocks: Collection[int]) -> None:
        try:
            for (number, _), block in self._blocks.items():
                if number in blocks:
                    self._work.here = STEPS_FOR_A_DOCUMENT
                    block.look(record, self._work.take_here)
        except terms.Exhausted:
            self._is_incomplete = True

    def rows(self) -> Sequence[EvidenceRow]:
        """Returns the rows of an output; partners of an absence are not looked for. Raises Exhausted."""
        if self._is_incomplete:
            raise terms.Exhausted
        return self._top.result(self._work.take).rows

    def result(self) -> Passing:
        """Joins what was found. The step count starts again for the joins."""
        try:
            found = self._top.result(terms.StepBudget(self._steps).take)
        except terms.Exhausted:
            found = Passing(incomplete=True)
        left_out = sum(block.left_out for block in self._blocks.values())
        return replace(found, left_out=left_out, incomplete=self._is_incomplete or found.incomplete)

    def _joins(self, whole: joins.NormalQuery | joins.Hidden, kept: Collection[str], first: int) -> Disjuncts:
        if whole.absent:
            return self._absence(whole, kept, first)
        found = Disjuncts()
        for conjunct in whole.conjuncts:
            wanted = joins.needed(conjunct) | set(kept)
            left = self._input(conjunct.left, wanted, first)
            if conjunct.right is None:
                found.append(left)
                continue
            right = self._input(conjunct.right, wanted, first + terms.blocks_of(conjunct.left))
            span = self._span(first, *conjunct.sides())
            found.append(JoinEvidence(self.query, whole, conjunct, left, right, kept, span))
        return found

    def _absence(self, whole: joins.NormalQuery | joins.Hidden, kept: Collection[str], first: int) -> Disjuncts:
        side = whole.conjuncts[0].left
        wanted = set(kept).union(*(absent.variables() for absent in whole.absent))
        left, partners, lefts = self._input(side, wanted, first), Disjuncts(), list[_Branched]()
        for absent in whole.absent if self._fixed is None else ():
            right = self._input(absent.right, absent.variables(), first + terms.blocks_of(side))
            conjunct = joins.Conjunct(side, absent.right, absent.joins, absent.residual)
            inputs: tuple[_Input, _Input] = _Branched(self.query, absent), right
            if whole.op == "NOT PRECEDED BY":
                turned = tuple((other, one) for one, other in absent.joins)
                conjunct, inputs = joins.Conjunct(absent.right, side, turned, absent.residual), inputs[::-1]
            lefts += (one for one in inputs if isinstance(one, _Branched))
            span = self._span(first, side, absent.right)
            partners.append(JoinEvidence(self.query, whole, conjunct, *inputs, (), span))
        return Disjuncts([AbsenceEvidence(whole, left, partners, lefts)])

    def _span(self, first: int, *sides: joins.Side) -> Span:
        own = self.query.blocks[first : first + sum(map(terms.blocks_of, sides))]
        return Span(own[0].span.start, own[-1].span.end)

    def _input(self, side: joins.Side, wanted: Collection[str], first: int) -> _Input:
        if side.hidden is not None:
            return self._joins(side.hidden, set(side.hidden.variables) & set(wanted), first)
        key = first, joins.naming(side.pattern, wanted)
        if key not in self._blocks:
            self._blocks[key] = BlockEvidence(self.query, first, side, wanted, self._fixed)
        return self._blocks[key]
