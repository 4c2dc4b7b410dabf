"""Finds partition keys: values by which events can be partitioned so that no result has events of two parts. NEXT and
FOLD with an equality of both sides partition both by its values, AGGREGATE by an attribute of BY. Keys propagate from
the last operator to the streams. Parts number new sets of events provisionally; the driver renumbers them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from common.arrays import Ints
from pattern_stage.clauses import TooManyClauses, common_equalities, numeric, on_left, split_condition
from pattern_stage.columns import NO_INTS, Columns, mixed, same
from pattern_stage.definition import StatementForm
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts, compile_value, every_event, flatten_lists, ints, lists
from xscl.algebra import events as algebra

MOST_TRIES = 1_000  # maximum number of candidate keys tried for a statement

PartitionKey = algebra.Value | None
"""A value of an event, as the left one. None allows any partitioning."""


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The keys of a form's nodes, by place, and of its streams, by name."""

    of: tuple[PartitionKey, ...]
    streams: tuple[tuple[str, algebra.Schema, PartitionKey], ...]


def find_partition_keys(form: StatementForm) -> PartitionKeys | None:
    """Returns keys for a form; None if it is not partitionable. Strings are compared as strings if all equalities are,
    else all values as numbers: then all non-numeric strings are in one part."""
    kinds: tuple[algebra.Kind, algebra.Kind] = ("string", "number")
    for kind in kinds:
        if (found := _Search(form, kind).found()) is not None:
            nodes = zip(form.nodes, found, strict=True)
            streams = [(node.stream, node.schema, key) for node, key in nodes if node.definition is None]
            return PartitionKeys(tuple(found), tuple(sorted(streams, key=lambda one: one[0])))
    return None


class _Search:
    def __init__(self, form: StatementForm, kind: algebra.Kind) -> None:
        self._nodes, self._kind = form.nodes, kind
        self._tries = 0

    def found(self) -> list[PartitionKey] | None:
        found = self._from(len(self._nodes) - 1, [None] * len(self._nodes))
        if found is None or all(key is None for key in found):
            return None
        return [key if key is None or self._kind == "string" else numeric(key) for key in found]

    def _from(self, place: int, keys: list[PartitionKey]) -> list[PartitionKey] | None:
        if place < 0:
            return keys
        self._tries += 1
        if self._tries > MOST_TRIES:
            return None
        node = self._nodes[place]
        for asked in self._ways(place, keys[place]):
            mine = list(keys)
            for at, key in zip(node.inputs, asked, strict=True):
                mine[at] = mine[at] or key
            fits = all(key in (None, mine[at]) for at, key in zip(node.inputs, asked, strict=True))
            if fits and (found := self._from(place - 1, mine)) is not None:
                return found
        return None

    def _ways(self, place: int, key: PartitionKey) -> Iterator[Sequence[PartitionKey]]:
        node = self._nodes[place]
        if node.definition is None:
            yield ()
            return
        match node.definition.operator:
            case algebra.Filter():
                yield (key,)
            case algebra.Union():
                yield (key, key)
            case algebra.Select(items=items):
                values = dict(items)
                under = None if key is None else algebra.map_leaves(key, lambda leaf: values.get(_name(leaf), leaf))
                if under is None or _is_key(under):
                    yield (under,)
            case algebra.Aggregate(by=by, source=source):
                yield from ((one,) for one in self._attributes(by, source.schema) if key is None)
                if key is not None and self._fits(key) and all(_name(leaf) in by for leaf in algebra.leaves(key)):
                    yield (key,)
            case algebra.Next(condition=condition, names=names, schema=schema):
                of = {name: source for source, (name, _) in zip(names, schema, strict=True)}
                for left, right in self._equalities(condition):
                    one, other = on_left(left), on_left(right)
                    if key is None or _meant(key, of) in (({"left"}, one), ({"right"}, other)):
                        yield (one, other)
            case algebra.Fold() as fold:
                yield from self._of_fold(fold, key)
            case algebra.Pattern() | algebra.NearPattern() as pattern:
                # What a BUDGET keeps is learnt of all keys.
                is_strict = isinstance(pattern, algebra.Pattern) and pattern.strategy == "strict"
                whole = is_strict or (isinstance(pattern, algebra.NearPattern) and pattern.budget is not None)
                if not whole and key is None:
                    for one in self._attributes(pattern.keys, next(iter(pattern.streams.values()))):
                        yield [one] * len(node.inputs)

    def _of_fold(self, fold: algebra.Fold, key: PartitionKey) -> Iterator[Sequence[PartitionKey]]:
        changing = {name for name, _ in fold.right.schema}
        computed = {name for name, _ in fold.sets}
        of = {name: source for source, (name, _) in zip(fold.names, fold.schema, strict=True)}
        for one, right in self._equalities(fold.chooses):
            attributes = [leaf for leaf in algebra.leaves(one) if isinstance(leaf, algebra.Attribute)]
            parts, names = {leaf.part for leaf in attributes}, {leaf.name for leaf in attributes}
            left, other = on_left(one), on_left(right)
            stays = names.isdisjoint(changing | computed)
            changes = "latest" in parts and not stays
            if changes and not (parts == {"latest"} and names <= changing - computed and left == other):
                continue  # its next value may be another
            if key is not None:
                sides, meant = _meant(key, of)
                if meant != left or not (sides == {"left"} or changes or stays):
                    continue
            yield (left, other)

    def _equalities(self, condition: algebra.EventCondition) -> list[tuple[algebra.Value, algebra.Value]]:
        """Returns the equalities of attributes of the left side with the right one that a condition implies."""
        try:
            found = common_equalities(split_condition(condition))
        except TooManyClauses:
            return []
        return [pair for pair in found if all(_is_key(one) and self._fits(one) for one in pair)]

    def _attributes(self, names: Sequence[str], schema: algebra.Schema) -> Iterator[algebra.Value]:
        return filter(self._fits, (algebra.Attribute("left", name, dict(schema)[name]) for name in names))

    def _fits(self, value: algebra.Value) -> bool:
        return self._kind == "number" or algebra.value_kind(value) == "string"


def _is_key(value: algebra.Value) -> bool:
    """Whether a value has attributes only: constants could give as many keys as statements."""
    return all(isinstance(leaf, algebra.Attribute) for leaf in algebra.leaves(value))


def _name(leaf: algebra.Value) -> str:
    return leaf.name if isinstance(leaf, algebra.Attribute) else ""


def _meant(key: algebra.Value, of: Mapping[str, tuple[algebra.Part, str]]) -> tuple[set[algebra.Part], algebra.Value]:
    """Returns the inputs of a key of results, and the key there."""

    def renamed(leaf: algebra.Value) -> algebra.Value:
        return algebra.Attribute("left", of[leaf.name][1], leaf.kind) if isinstance(leaf, algebra.Attribute) else leaf

    return {of[_name(leaf)][0] for leaf in algebra.leaves(key)}, algebra.map_leaves(key, renamed)


def assign_partitions(key: PartitionKey, events: Columns, schema: algebra.Schema, texts: Texts, parts: int) -> Ints:
    """Returns the part of each event, the same in every process."""
    if key is None:
        return _spread(events.parts[:, 0], parts)
    column = compile_value(key, schema, None, texts)(every_event(events))
    if algebra.value_kind(key) == "number":
        return _spread(same(column), parts)
    codes, at = np.unique(column.astype(np.int64), return_inverse=True)
    hashes = [0 if text is None else zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in texts.texts(codes)]
    found: Ints = np.array(hashes, np.int64)[at] % parts
    return found


def _spread(numbers: Ints, parts: int) -> Ints:
    return (mixed([np.ascontiguousarray(numbers)]).view(np.uint64) % np.uint64(parts)).astype(np.int64)


FIRST = 1 << 61  # the first provisional number of a set; the driver's are less


def new_sets(lineage: Lineage) -> pa.Table | None:
    """Returns the sets of a part: `number` and `refers`, their members. None if there are none."""
    table = lineage.table()
    new = table.filter(pa.array(table["number"].to_numpy() >= FIRST))
    return new.select(["number", "refers"]).combine_chunks() if len(new) else None


@dataclass(frozen=True, slots=True)
class Numbers:
    """Maps foreign event numbers to ours; other numbers stay."""

    theirs: Ints
    ours: Ints

    def of(self, parts: Ints) -> Ints:
        if not len(self.theirs):
            return parts
        at = np.minimum(np.searchsorted(self.theirs, parts), len(self.theirs) - 1)
        return np.where(self.theirs[at] == parts, self.ours[at], parts)

    def in_state(self, state: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        found = dict(state)
        for name, table in state.items() if len(self.theirs) else ():
            for place, column in enumerate(table.column_names):
                if column.endswith("parts"):
                    numbers, sizes = flatten_lists(table, column)
                    found[name] = found[name].set_column(place, column, lists(self.of(numbers), sizes))
        return found


def set_numbers(sets: pa.Table | None, lineage: Lineage) -> Numbers:
    if sets is None:
        return Numbers(NO_INTS, NO_INTS)
    members, sizes = flatten_lists(sets, "refers")
    groups = np.repeat(np.arange(len(sizes)), sizes)
    known = members >= 0
    ours = lineage.together(members[known].reshape(-1, 1), groups[known])
    order = np.argsort(theirs := ints(sets, "number"))
    return Numbers(theirs[order], ours[order])
