"""Looks at documents for one block of a conjunctive query: which stages each of them passes, and what it binds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mmqjp.documents.record import Record
from mmqjp.explain.block_stages import stages
from mmqjp.explain.block_trial import counts_of, hint_of, reached_of
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.readable import ReadableQuery
from mmqjp.explain.sample import TooLong
from mmqjp.explain.trial_text import part_text
from xpath_stage.binder import Node, Part, Take, each_binding
from xpath_stage.parse import ParsedDocument
from xscl import to_xscl
from xscl.algebra.expressions import String
from xscl.algebra.normal import Side
from xscl.algebra.pattern import Condition, PatternNode, naming
from xscl.algebra.system_names import block_root

MOST_ROWS, STEPS_FOR_A_ROW = 5_000, 50
"""At most so many bindings of a document are looked at in a join: one with more is left out. Each counts as so many
steps, because it is kept in memory."""

FOR_HINTS, MOST_BYTES_FOR_HINTS = 100, 256 << 10
"""In so many of the documents that come furthest it is looked up what may be meant by a stage that matches none. Larger
ones are looked into alone."""

CHARACTERS_PER_STEP = 256


@dataclass(frozen=True, slots=True)
class Bound:
    """A node of a document, by its docid, with its text."""

    docid: int
    node: Node
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """What is bound in the documents of an input, of one or more blocks: the nodes of the variables that matter. `t0`
    and `t1` are the interval of the documents."""

    documents: tuple[Record, ...]
    t0: int
    t1: int
    bound: Mapping[str, Bound]

    @property
    def docids(self) -> tuple[int, ...]:
        """The docids of the documents."""
        return tuple(record.docid for record in self.documents)


@dataclass(eq=False)
class BlockTrial:
    """What one block of a conjunctive query found so far. `streams` counts the documents that are offered by stream,
    and `left_out` those that are too large to search. Variables that are `needed` are bound in `rows`."""

    query: ReadableQuery
    number: int
    side: Side
    needed: Collection[str]
    rows: list[Row] = field(default_factory=list)
    left_out: int = 0
    streams: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        block = self.query.blocks[self.number]
        self._stages = stages(block.steps)
        own = self.query.builder.path(block.steps, last_var=block_root(self.number))
        self._asked = list(_asked(self.query, self.side.pattern, own))
        parts = [self.query.builder.path(stage.steps) for stage in self._stages]
        for last in range(len(self._asked)):
            parts.append(_without(self.side.pattern, self._asked[last + 1 :]))
        self._parts = [Part(naming(part, ())) for part in parts]
        self._whole = Part(naming(self.side.pattern, self.needed))
        self._reached: Counter[int] = Counter()
        self._sample: list[ParsedDocument] = []

    def look(self, record: Record, take: Take) -> None:
        """Looks at one more document. Raises whatever `take` does, but TooLong leaves the document out."""
        self.streams[record.stream] += 1
        if record.stream != self.side.stream:
            return
        try:
            found = list(self._found(record, take))
            reached = len(self._parts) if found else reached_of(self._parts, record.tree, take)
        except TooLong:
            self.left_out += 1
            return
        self.rows += found
        if reached > max(self._reached, default=0):
            self._sample.clear()
        is_fit = not self._sample or (record.tree.size <= MOST_BYTES_FOR_HINTS and len(self._sample) < FOR_HINTS)
        if not found and reached >= max(self._reached, default=0) and is_fit:
            self._sample.append(record.tree)
        self._reached[reached] += 1

    def _found(self, record: Record, take: Take) -> Iterator[Row]:
        texts: dict[Node, str] = {}
        for number, binding in enumerate(each_binding(self._whole, record.tree, {}, take)):
            if number == MOST_ROWS:
                raise TooLong
            take(STEPS_FOR_A_ROW)
            for _, node in binding:
                if node not in texts:
                    texts[node] = record.tree.string_value(*node)
                    take(1 + len(texts[node]) // CHARACTERS_PER_STEP)
            bound = {var: Bound(record.docid, node, texts[node]) for var, node in binding}
            yield Row((record,), record.t0, record.t1, bound)

    @property
    def documents(self) -> int:
        """How many documents of its stream there were."""
        return self.streams[self.side.stream]

    def stages(self) -> Iterator[Stage]:
        """Yields its stages, the first that nothing passes with what there is instead. Those behind it are left out."""
        stream, block = self.side.stream, self.number + 1
        stage = Stage("stream", stream, self.documents, block=block)
        if not self.documents:
            yield stage.told(*self._no_document())
            return
        yield stage
        counts = counts_of(self._reached, len(self._parts))
        for number, found in enumerate(self._stages):
            stage = Stage("pattern", part_text(found.span, self.query.text), counts[number], block=block)
            if not counts[number]:
                hint = hint_of(found, self.query.builder, self._sample) if self._sample else ""
                yield stage.told(self._none_matches(stage.part, number), hint)
                return
            yield stage
        for number, asked in enumerate(self._asked, len(self._stages)):
            stage = Stage("asked", asked.text, counts[number], block=block)
            if not counts[number]:
                yield stage.told(f"{asked.missing} in {self._where()}", asked.hint)
                return
            yield stage

    def _no_document(self) -> tuple[str, str]:
        others = ", ".join(f"{stream} ({count:,})" for stream, count in self.streams.most_common(5))
        if sum(self.streams.values()) == 1:
            return f"the document is of stream {next(iter(self.streams))}, not of {self.side.stream}", ""
        what = f"there is no document of stream {self.side.stream}"
        return what, f"there are documents of {others}" if others else ""

    def _none_matches(self, part: str, number: int) -> str:
        before = ""
        if number:
            last = self._stages[min(number, len(self._stages)) - 1]
            before = f"; {part_text(last.span, self.query.text)}, before it, does"
        return f"{part} does not match {self._where()}{before}"

    def _where(self) -> str:
        stream = self.side.stream
        if self.documents == 1:
            return f"the document of stream {stream}"
        too_large = f" ({self.left_out:,} are too large to search)" if self.left_out else ""
        return f"any of {self.documents:,} documents of stream {stream}{too_large}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What predicates and SELECT ask of a block: a path on a variable, or a condition on one. `missing` says that it is
    not there."""

    text: str
    missing: str
    var: str
    condition: Condition | None = None
    hint: str = ""


def _asked(query: ReadableQuery, pattern: PatternNode, own: PatternNode) -> Iterator[_Asked]:
    known = {(node.var, condition) for node in own.walk() for condition in node.conditions}
    for node in pattern.walk():
        if node.var is None:
            continue
        text = query.variable(node.var)
        if node.var in query.paths:
            hint = f"{text} is in the predicate or SELECT, so each match must have it"
            yield _Asked(text, f"there is no {text}", node.var, hint=hint)
        for condition in node.conditions:
            if (node.var, condition) not in known:
                if condition.literal is not None:
                    value = to_xscl(String(condition.literal))
                    yield _Asked(f"{text} = {value}", f"{text} is not {value}", node.var, condition)
                else:
                    kind = "time" if "time" in str(condition.xpath) else "number"
                    yield _Asked(text, f"{text} is no {kind}, and equals nothing", node.var, condition)


def _without(pattern: PatternNode, left_out: Collection[_Asked]) -> PatternNode:
    """The pattern without some of what is asked."""
    ends = {asked.var for asked in left_out if asked.condition is None}
    conditions = {(asked.var, asked.condition) for asked in left_out if asked.condition is not None}

    def cut(node: PatternNode) -> PatternNode:
        children = tuple(cut(child) for child in node.children if not _ends_in(child, ends))
        kept = tuple(one for one in node.conditions if (node.var, one) not in conditions)
        return replace(node, conditions=kept, children=children)

    return cut(pattern)


def _ends_in(node: PatternNode, ends: Collection[str]) -> bool:
    """Whether a branch was attached for the end of a path."""
    while len(node.children) and node.var is None:
        node = node.children[-1]
    return node.var in ends
