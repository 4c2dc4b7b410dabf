"""From matches on rows of R_T to what each subscriber gets (thesis, Algorithm 3): times, residuals, outputs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from lxml import etree

from mmqjp.output import Value, construct
from mmqjp.outputs import Output
from mmqjp.records import Record, Records, own_part_id
from mmqjp.registry import Registry
from mmqjp.residual import holds
from mmqjp.subscriptions import HiddenStream, Subscription, Target
from templates.witness import plain_node
from xpath_stage.binder import Node, bindings
from xscl.normal import Side, Term
from xscl.pattern import PatternNode

SideBinding = Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class Match:
    """A row of R_outT: the shared row of R_T, the documents, the nodes by the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]

    @property
    def docids(self) -> tuple[int, ...]:
        return (self.docid1,) if self.docid2 is None else (self.docid1, self.docid2)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one match gives one subscriber: an output, a document for the readers of a stream, or both."""

    output: Output | None
    subscription: Subscription | None
    document: Record | None


class Delivery:
    """Delivers the matches of one batch. An output is made once for its query, documents and SELECT nodes."""

    def __init__(
        self,
        registry: Registry,
        records: Records,
        only: Collection[Subscription | HiddenStream] | None = None,
        known: Iterable[tuple[object, ...]] = (),
        most: int | None = None,
    ) -> None:
        """With `only`, to nobody but these. `known` are tuples that there are already: stream, parts, what is bound.
        A query gets at most `most` outputs for a document, the last to arrive of those that are joined."""
        self._registry, self._records, self._only = registry, records, only
        self._seen: set[tuple[object, ...]] = set(known)
        self._most = most
        self._counts: Counter[tuple[int, int]] = Counter()
        self.runaways: dict[Subscription, int] = {}
        """The queries that would have got more, with the documents' ids. They get nothing any more."""
        self._bound: dict[tuple[object, ...], list[SideBinding]] = {}
        self._paths: dict[int, Mapping[str, tuple[int, ...]]] = {}

    def deliver(self, matches: Iterable[Match]) -> Iterator[tuple[Match, list[Delivered]]]:
        """The matches, each with what its subscribers get that no earlier match gave them."""
        for match in matches:
            inputs = [self._records[docid] for docid in match.docids]
            found: list[Delivered] = []
            for target in self._registry.of_row(match.row):
                owner = target.owner
                wanted = owner.active if self._only is None else owner in self._only
                if wanted and _in_time(target, inputs) and all(owner.sees(record.parts) for record in inputs):
                    found += self._limited(target, inputs, match)
            yield match, found

    def _limited(self, target: Target, inputs: list[Record], match: Match) -> Iterator[Delivered]:
        """What a match gives a target, up to where it is too much."""
        owner = target.owner
        if self._most is None or isinstance(owner, HiddenStream):
            yield from self._target(target, inputs, match.nodes)
        elif owner not in self.runaways:
            latest = max(match.docids)
            for item in self._target(target, inputs, match.nodes):
                self._counts[owner.qid, latest] += 1
                if self._counts[owner.qid, latest] > self._most:
                    self.runaways[owner] = latest
                    return
                yield item

    def _target(self, target: Target, inputs: list[Record], nodes: Sequence[int]) -> Iterator[Delivered]:
        conjunct = target.conjunct
        sides = [
            self._side_bindings(target, i, side, record, nodes)
            for i, (side, record) in enumerate(zip(conjunct.sides(), inputs, strict=True))
        ]
        for choice in product(*sides):
            place: dict[str, tuple[Record, Node]] = {}
            for record, bound in zip(inputs, choice, strict=True):
                place.update((var, (record, node)) for var, node in bound.items())
            text_of = partial(_text, place)
            if all(holds(expr, text_of) for expr in conjunct.residual):
                if isinstance(target.owner, HiddenStream):
                    yield from self._tuple(target.owner, inputs, place)
                else:
                    yield from self._output(target.owner, inputs, place)

    # ------------------------------------------------------------ bindings

    def _side_bindings(
        self, target: Target, i: int, side: Side, record: Record, nodes: Sequence[int]
    ) -> list[SideBinding]:
        """The bindings of the side's needed variables, given the nodes of its value-join variables (section 6, K+)."""
        if side.hidden is not None:
            return [{child.var: (n + 1, 0) for n, child in enumerate(side.pattern.children) if child.var}]
        minor, slots = target.placement.minors[i], target.placement.slots[i]
        fixed = {node.path: plain_node(nodes[slot]) for node, slot in zip(minor.nodes, slots, strict=True)}
        paths = self._paths.get(id(side))
        if paths is None:
            paths = self._paths[id(side)] = dict(_variable_paths(side.pattern, ()))
        if all(path in fixed for path in paths.values()):
            return [{var: fixed[path] for var, path in paths.items()}]
        key = (id(side), record.docid, *sorted(fixed.items()))
        found = self._bound.get(key)
        if found is None:
            found = self._bound[key] = [dict(b) for b in bindings(side.pattern, record.tree, fixed)]
        return found

    def _resolve(self, record: Record, node: Node) -> tuple[Record, Node]:
        """The document and node that a tuple's variable stands for; any other node is its own."""
        if record.kind != "hidden":
            return record, node
        docid, origin = record.bound[node[0] - 1]
        return self._records[docid], origin

    # ------------------------------------------------------------ what comes out

    def _tuple(
        self, owner: HiddenStream, inputs: list[Record], place: Mapping[str, tuple[Record, Node]]
    ) -> Iterator[Delivered]:
        values = [Value(*self._resolve(*place[var])) for var in owner.hidden.variables]
        parts = tuple(part for record in inputs for part in record.parts)
        bound = tuple((value.record.docid, value.node) for value in values)
        if self._first(owner.stream, parts, bound):
            root = etree.Element("tuple")
            for i, value in enumerate(values):
                etree.SubElement(root, f"v{i}").text = value.text()
            yield Delivered(None, None, self._document(owner.stream, "hidden", inputs, root, bound))

    def _output(
        self, owner: Subscription, inputs: list[Record], place: Mapping[str, tuple[Record, Node]]
    ) -> Iterator[Delivered]:
        def value(term: Term | str) -> Value | str:
            return term if isinstance(term, str) else Value(*self._resolve(*place[term.var]), term.functions)

        normal = owner.normal
        values = {entry.key: value(entry.value) for entry in normal.entries}
        chosen = {key: v for key, v in values.items() if isinstance(v, Value)}
        parts = tuple(part for record in inputs for part in record.parts)
        if not self._first(owner.qid, parts, tuple((v.record.docid, v.node) for v in chosen.values())):
            return
        t0, t1 = min(r.t0 for r in inputs), max(r.t1 for r in inputs)
        root = construct(normal, owner.name, t0, t1, values, [value(hole) for hole in normal.holes])
        sources = [source for record in inputs for source in record.sources]
        output = Output(
            owner.name,
            t0,
            t1,
            tuple(source[0] for source in sources),
            tuple(source[1] for source in sources),
            {key: v.json_id() for key, v in chosen.items()},
            etree.tostring(root, encoding="unicode"),
        )
        document = None
        if owner.publishes and self._registry.has_readers(owner.name):
            part_ids = [part for record in inputs for part in record.part_ids]
            identity = [owner.name, owner.text, owner.occurrence, part_ids, [v.json_id() for v in chosen.values()]]
            document = self._document(owner.name, "published", inputs, root, (), _digest(identity))
        yield Delivered(output, owner, document)

    def _document(
        self,
        stream: str,
        kind: str,
        inputs: list[Record],
        root: etree._Element,
        bound: tuple[tuple[int, Node], ...],
        document_id: str = "",
    ) -> Record:
        """A document of our own making; its docid is given when it enters the next step."""
        hidden = kind == "hidden"
        return Record(
            -1,
            document_id,
            stream,
            min(r.t0 for r in inputs),
            max(r.t1 for r in inputs),
            etree.tostring(root, encoding="unicode"),
            "hidden" if hidden else "published",
            tuple(part for r in inputs for part in r.parts) if hidden else (),
            tuple(p for r in inputs for p in r.part_ids) if hidden else (own_part_id(stream, document_id),),
            tuple(source for r in inputs for source in r.sources),
            bound,
        )

    def _first(self, *key: object) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def _text(place: Mapping[str, tuple[Record, Node]], var: str) -> str:
    return Value(*place[var]).text()


def _in_time(target: Target, inputs: list[Record]) -> bool:
    if len(inputs) == 1:
        return True
    left, right = inputs
    if target.op == "FOLLOWED BY" and not left.t1 < right.t0:
        return False
    return max(left.t1, right.t1) - min(left.t0, right.t0) <= target.window


def _variable_paths(pattern: PatternNode, path: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if pattern.var:
        yield pattern.var, path
    for i, child in enumerate(pattern.children):
        yield from _variable_paths(child, (*path, i))


def _digest(identity: list[object]) -> str:
    return hashlib.sha256(json.dumps(identity, ensure_ascii=False).encode()).hexdigest()[:32]
