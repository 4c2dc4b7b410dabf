"""What the oracle finds: documents that blocks read, values of names, joint bindings, outputs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tests.oracle.match import Node, Tree
from tests.oracle.values import Typed, text_of


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output document, with the fields of an output line (docs/semantics.md, section 10)."""

    query: str
    t0: int
    t1: int
    documents: tuple[str, ...]
    streams: tuple[str, ...]
    nodes: tuple[tuple[str, int | str], ...]
    xml: str


@dataclass(frozen=True, eq=False)
class Stored:
    """A document that blocks read: an external one or an output; equal only to itself.

    `externals` has the (id, stream) of each external document that it derives from, left to right. `arrival` is the
    number of the latest of them, `watermark` that of its stream then, if it ends before it.
    """

    stream: str
    id: str
    t0: int
    t1: int
    xml: bytes | str
    externals: tuple[tuple[str, str], ...]
    arrival: float = -1
    watermark: float | None = None

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.xml)


@dataclass(frozen=True, slots=True)
class Value:
    """What a name stands for: a node of a document, perhaps with a derived value; or just a constant text."""

    document: Stored | None
    node: Node | None
    derived: Typed | None = None
    choice: int = 0  # which of several values it is, from 1

    def label(self) -> int | str:
        assert self.node is not None
        return f"{self.node.label()}/#{self.choice}" if self.choice else self.node.label()

    @property
    def text(self) -> str:
        return text_of(self.typed)

    @property
    def typed(self) -> Typed:
        if self.derived is not None:
            return self.derived
        assert self.document is not None and self.node is not None
        return self.document.tree.text(self.node)


@dataclass(frozen=True, slots=True)
class Root:
    """One part of `SELECT *`: the root of the block with this number, or (named) an item of an inner SELECT."""

    block: int
    name: str | None
    value: Value


@dataclass(frozen=True, slots=True)
class Match:
    """One joint binding over the documents that the blocks read, left to right.

    It is `hidden` if a join or an absence made it. An absence is over at `until`, `decided` by an arrival.
    """

    inputs: tuple[Stored, ...]
    visible: Mapping[str, Value]
    roots: tuple[Root, ...]
    hidden: bool = False
    until: int = -(2**63)
    decided: float = -1

    @property
    def arrival(self) -> float:
        return max(self.decided, *(document.arrival for document in self.inputs))

    @property
    def watermark(self) -> float | None:
        """That of the document that came last, if it is belated and the match ends before it, too."""
        last = [one.watermark for one in self.inputs if one.watermark is not None and one.arrival == self.arrival]
        return max((watermark for watermark in last if self.t1 < watermark), default=None)

    @property
    def t0(self) -> int:
        return min(document.t0 for document in self.inputs)

    @property
    def t1(self) -> int:
        return max(self.until, *(document.t1 for document in self.inputs))

    def star(self) -> list[tuple[str, Value]]:
        short = ("left", "right")
        count = len(self.inputs)
        return [(r.name or (short[r.block] if count <= 2 else f"b{r.block + 1}"), r.value) for r in self.roots]


@dataclass(frozen=True, slots=True)
class Answer:
    """One output: its row, the document that readers of its stream get, and what distinguishes it from the query's
    other outputs: the documents that its blocks read, left to right, and its nodes. `keys` has what it says of that
    which is told once."""

    row: OutputRow
    stored: Stored
    inputs: tuple[Stored, ...]
    nodes: tuple[tuple[str, int | str], ...]
    keys: frozenset[tuple[str, ...]] = frozenset()

    @property
    def order(self) -> tuple[object, ...]:
        """Where it stands among the outputs of the query: by end, documents, nodes, and what its id is made of."""
        nodes = [(name, int(str(node).partition("/")[0]), str(node).partition("/")[2]) for name, node in self.nodes]
        return self.row.t1, self.row.documents, nodes, choice_of(self.inputs, self.nodes)


def choice_of(inputs: Iterable[Stored], nodes: Iterable[tuple[str, int | str]]) -> str:
    """What the id of an output is made of, beside its query."""
    parts, chosen = (
        [json.dumps([stored.stream, stored.id], ensure_ascii=False) for stored in inputs],
        [node for _, node in nodes],
    )
    return f", {json.dumps(parts, ensure_ascii=False)}, {json.dumps(chosen, ensure_ascii=False)}]"


def in_time(
    documents: Iterable[Stored], streams: Collection[str], settle: Mapping[str, int]
) -> tuple[list[Stored], list[Stored]]:
    """The documents whose events are seen, and those that come too late (docs/semantics.md, section 21). `streams` are
    the external streams behind any event statement; `settle` has how many microseconds each waits.

    A document that comes too late moves the horizon as any other: it is behind it. As long as a stream has no documents
    there is no horizon, and nothing is late.
    """
    greatest: dict[str, int] = {}
    horizon: int | None = None
    kept: list[Stored] = []
    late: list[Stored] = []
    for document in documents:
        (kept if horizon is None or document.t1 >= horizon else late).append(document)
        if document.stream in streams:
            greatest[document.stream] = max(document.t1, greatest.get(document.stream, document.t1))
        if len(greatest) == len(set(streams)):
            now = min(most - settle[stream] for stream, most in greatest.items())
            horizon = now if horizon is None else max(now, horizon)
    return kept, late
