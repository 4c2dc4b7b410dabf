"""From matches on rows of R_T to what each subscriber gets (thesis, Algorithm 3): times, residuals, outputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lxml import etree

from mmqjp.answers.allowance import CHARACTERS_A_STEP, NEVER, Account, Steps, TooMuch
from mmqjp.answers.construct import Value, construct
from mmqjp.answers.output import Output
from mmqjp.answers.residual import holds
from mmqjp.answers.spending import Accounts
from mmqjp.documents.records import Record, Records, own_part_id
from mmqjp.queries.model import HiddenStream, Subscription, Target
from mmqjp.queries.registry import Registry
from templates.witness import plain_node
from xpath_stage.binder import HELD, Node, Part, each_binding
from xscl.algebra.normal import Side, Term
from xscl.algebra.pattern import PatternNode

SideBinding = Mapping[str, Node]

FEW, MOST_HELD = 1_000, 100_000
"""So many bindings of one document are kept for others to ask, and of all documents."""

CHARACTERS_READ_A_STEP = 256
"""Of a value that a residual predicate compares."""


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
    """Delivers the matches of one step. An output is made once for its query, documents and SELECT nodes."""

    def __init__(
        self,
        registry: Registry,
        records: Records,
        accounts: Accounts,
        only: Collection[Subscription | HiddenStream] | None = None,
        known: Iterable[tuple[object, ...]] = (),
    ) -> None:
        """With `only`, to nobody but these, as new queries that see what is kept: `known` are tuples that there are
        already, as stream, parts, what is bound."""
        self._registry, self._records, self._accounts, self._only = registry, records, accounts, only
        self._known: set[tuple[object, ...]] = set(known)
        self._seen: set[tuple[object, ...]] = set()
        self._bound: dict[tuple[object, ...], tuple[int, list[SideBinding]]] = {}
        self._held = 0
        self._paths: dict[int, Mapping[str, tuple[int, ...]]] = {}
        self._parts: dict[int, Part] = {}

    def deliver(self, matches: Iterable[Match]) -> Iterator[tuple[Match, list[Delivered]]]:
        """The matches, each with what its subscribers get that no earlier match gave them."""
        for match in matches:
            inputs = [self._records[docid] for docid in match.docids]
            arrival = max(record.arrival for record in inputs)
            found: list[Delivered] = []
            for target in self._registry.of_row(match.row):
                owner = target.owner
                wanted = owner.active if self._only is None else owner in self._only
                if wanted and _in_time(target, inputs):
                    takers = self._takers(owner, inputs, arrival)
                    if takers:
                        found += self._taken(target, inputs, match.nodes, arrival, takers)
            yield match, found

    def closed(self, rows: Iterable[int]) -> dict[int, int]:
        """Those of rows of R_T of which nobody wants matches from some arrival on, and that arrival."""
        if not self._accounts.is_cut():
            return {}
        closed = {row: max(map(self._until, self._registry.of_row(row)), default=NEVER) for row in rows}
        return {row: arrival for row, arrival in closed.items() if arrival < NEVER}

    def _until(self, target: Target) -> int:
        """The arrival from which on a target gets nothing."""
        if isinstance(target.owner, Subscription):
            return self._accounts.of(target.owner).cut
        readers = self._accounts.readers(target.owner)
        return max((min(one.until, one.account.cut) for one in readers), default=NEVER)

    # ------------------------------------------------------------ within bounds

    def _takers(self, owner: Subscription | HiddenStream, inputs: list[Record], arrival: int) -> list[Account]:
        """The accounts of those who see the inputs and get something for the arrival."""
        if isinstance(owner, HiddenStream):
            return [one.account for one in self._accounts.readers(owner) if one.want(inputs, arrival)]
        account = self._accounts.of(owner)
        if arrival >= account.cut or not all(owner.sees(record.appeared) for record in inputs):
            return []
        return [account]

    def _taken(
        self, target: Target, inputs: list[Record], nodes: Sequence[int], arrival: int, takers: list[Account]
    ) -> Iterator[Delivered]:
        """What a match gives a target, up to where it is too much for all that take it."""
        steps = Steps(allowed := max(account.steps(arrival) for account in takers))
        live = takers
        try:
            steps.take()
            for item in self._target(target, inputs, nodes, steps):
                live = [account for account in live if account.take_output(arrival)]
                if not live:
                    break
                if item is not None:
                    yield item
        except TooMuch:
            pass
        for account in takers:
            account.take_steps(arrival, allowed - steps.left)

    def _target(
        self, target: Target, inputs: list[Record], nodes: Sequence[int], steps: Steps
    ) -> Iterator[Delivered | None]:
        """What a match gives a target; None for what there is already."""
        conjunct = target.conjunct
        sides = [
            self._side_bindings(target, i, side, record, nodes, steps)
            for i, (side, record) in enumerate(zip(conjunct.sides(), inputs, strict=True))
        ]
        for choice in _joint(sides):
            steps.take()
            place: dict[str, tuple[Record, Node]] = {}
            for record, bound in zip(inputs, choice, strict=True):
                place.update((var, (record, node)) for var, node in bound.items())
            if conjunct.residual:
                text_of = partial(_text, place, steps)
                if not all(holds(expr, text_of) for expr in conjunct.residual):
                    continue
            if isinstance(target.owner, HiddenStream):
                yield from self._tuple(target.owner, inputs, place, steps)
            else:
                yield from self._output(target.owner, inputs, place, steps)

    # ------------------------------------------------------------ bindings

    def _side_bindings(
        self, target: Target, i: int, side: Side, record: Record, nodes: Sequence[int], steps: Steps
    ) -> Iterable[SideBinding]:
        """The bindings of the side's needed variables, given the nodes of its value-join variables (section 6, K+);
        those of a right side in a list."""
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
        known = self._bound.get(key)
        if known is not None:
            steps.take(known[0])
        found = self._searched(key, side, record, fixed, steps) if known is None else known[1]
        if i == 0:
            return found
        held = []
        for bound in found:
            steps.take(HELD)
            held.append(bound)
        return held

    def _searched(
        self, key: tuple[object, ...], side: Side, record: Record, fixed: Mapping[tuple[int, ...], Node], steps: Steps
    ) -> Iterator[SideBinding]:
        """The bindings as they are found, which are kept for the next to ask if they are few."""
        few: list[SideBinding] | None = []
        before = steps.left
        took = 0
        for binding in each_binding(self._part(side), record.tree, fixed, steps.take):
            took += before - steps.left
            bound = dict(binding)
            if few is not None:
                few.append(bound)
                if len(few) > FEW:
                    few = None
            yield bound
            before = steps.left  # others take steps meanwhile
        if few is not None:
            if self._held > MOST_HELD:
                self._bound.clear()
                self._held = 0
            self._bound[key] = took + before - steps.left, few
            self._held += 1 + len(few)

    def _part(self, side: Side) -> Part:
        """A side's pattern, made ready to be bound."""
        part = self._parts.get(id(side))
        if part is None:
            part = self._parts[id(side)] = Part(side.pattern)
        return part

    def _resolve(self, record: Record, node: Node) -> tuple[Record, Node]:
        """The document and node that a tuple's variable stands for; any other node is its own."""
        if record.kind != "hidden":
            return record, node
        docid, origin = record.bound[node[0] - 1]
        return self._records[docid], origin

    # ------------------------------------------------------------ what comes out

    def _tuple(
        self, owner: HiddenStream, inputs: list[Record], place: Mapping[str, tuple[Record, Node]], steps: Steps
    ) -> Iterator[Delivered | None]:
        values = [Value(*self._resolve(*place[var])) for var in owner.hidden.variables]
        parts = tuple(part for record in inputs for part in record.parts)
        bound = tuple((value.record.docid, value.node) for value in values)
        key = owner.stream, parts, bound
        if self._first(*key):
            root = etree.Element("tuple")
            for i, value in enumerate(values):
                etree.SubElement(root, f"v{i}").text = value.text()
            xml = etree.tostring(root, encoding="unicode")
            steps.take(len(xml) // CHARACTERS_A_STEP)
            # What was there before a query counts as if it had come with it.
            yield None if key in self._known else Delivered(None, None, _document(owner.stream, inputs, xml, bound))

    def _output(
        self, owner: Subscription, inputs: list[Record], place: Mapping[str, tuple[Record, Node]], steps: Steps
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
        xml = etree.tostring(root, encoding="unicode")
        steps.take(len(xml) // CHARACTERS_A_STEP)
        sources = [source for record in inputs for source in record.sources]
        output = Output(
            owner.name,
            t0,
            t1,
            tuple(source[0] for source in sources),
            tuple(source[1] for source in sources),
            {key: v.json_id() for key, v in chosen.items()},
            xml,
        )
        document = None
        if owner.publishes and self._registry.has_readers(owner.name):
            part_ids = [part for record in inputs for part in record.part_ids]
            identity = [owner.name, owner.text, owner.occurrence, part_ids, [v.json_id() for v in chosen.values()]]
            document = _document(owner.name, inputs, xml, (), _digest(identity), within=self._only is None)
        yield Delivered(output, owner, document)

    def _first(self, *key: object) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def _document(
    stream: str,
    inputs: list[Record],
    xml: str,
    bound: tuple[tuple[int, Node], ...],
    published: str | None = None,
    *,
    within: bool = True,
) -> Record:
    """A document of our own making, which has the id `published` or is a tuple; its docid is given when it enters the
    next step. `within` tells whether it appears when the latest of its inputs does, or only now."""
    hidden = published is None
    appeared = tuple(at for r in inputs for at in r.appeared)
    return Record(
        -1,
        published or "",
        stream,
        min(r.t0 for r in inputs),
        max(r.t1 for r in inputs),
        xml,
        "hidden" if published is None else "published",
        tuple(part for r in inputs for part in r.parts) if hidden else (),
        tuple(p for r in inputs for p in r.part_ids) if published is None else (own_part_id(stream, published),),
        tuple(source for r in inputs for source in r.sources),
        bound,
        max(r.arrival for r in inputs),
        appeared if hidden else (max(appeared),) if within else (),
    )


def _joint(sides: Sequence[Iterable[SideBinding]]) -> Iterator[tuple[SideBinding, ...]]:
    """All ways to choose a binding of each side; that of the left is gone through once."""
    if len(sides) == 1:
        return ((one,) for one in sides[0])
    left, right = sides
    return ((one, other) for one in left for other in right)


def _text(place: Mapping[str, tuple[Record, Node]], steps: Steps, var: str) -> str:
    text = Value(*place[var]).text()
    steps.take(len(text) // CHARACTERS_READ_A_STEP)
    return text


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
