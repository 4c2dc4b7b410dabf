"""What is done for one part in one interval, in any process: statements are run over its events, from its state on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from pattern_stage.columns import Columns, Ints
from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.partition.sets import FIRST, new_sets
from pattern_stage.rules import RULE_NAMES, RuleName
from pattern_stage.saved import loaded, saved
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Statement as AnyStatement
from xscl.algebra.events import Schema

State = Mapping[str, pa.Table]
"""What waits, as `Kernel.state` returns it."""


class Statement(NamedTuple):
    """A statement: see `Kernel.add`."""

    number: int
    stream: AnyStatement
    since: int


@dataclass(frozen=True, slots=True)
class Told:
    """The statements of all groups, and how they are run. What is told under one version is the same."""

    version: str
    groups: Mapping[str, Sequence[Statement]]
    rules: tuple[RuleName, ...] = RULE_NAMES
    hashed: bool = True


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The events of a part for a group, by stream, with their attributes; what waits there; the lineage of all of
    these; and what their documents are called, if the group's statements need to know."""

    group: str
    events: Mapping[str, tuple[Schema, pa.Table]]
    state: State
    lineage: pa.Table
    ids: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a part in an interval, which ends before `until`."""

    part: int
    until: int
    groups: Sequence[GroupWork]

    @property
    def events(self) -> int:
        """How many events there are, those for several groups for each."""
        return sum(len(table) for group in self.groups for _, table in group.events.values())


class Found(NamedTuple):
    """Results of statements of one schema: statement `statements[i]` has the event `at[i]`."""

    schema: Schema
    events: pa.Table
    at: Ints
    statements: Ints


@dataclass(frozen=True, slots=True)
class GroupDone:
    """What a group has found, and what waits now: of so many instances for statements, and nothing becomes known before
    `due` without another event. `sets` has its new sets."""

    group: str
    found: Sequence[Found]
    state: State
    waiting: tuple[Ints, Ints]
    due: int | None
    sets: pa.Table | None


@dataclass(frozen=True, slots=True)
class Done:
    """The work of a part, done."""

    part: int
    groups: Sequence[GroupDone]


@dataclass(slots=True)
class Worker:
    """Does the work of parts, one after the other. Kernels are kept from one to the next, but not what waits in them:
    so it makes no difference which worker does what."""

    _version: str = ""
    _kernels: dict[str, tuple[Kernel, Texts, Lineage]] = field(default_factory=dict)

    def work(self, told: Told, work: Work) -> Done:
        """Does the work of a part."""
        if self._version != told.version:
            self._version = told.version
            self._kernels.clear()
        return Done(work.part, [self._group(told, one, work.until) for one in work.groups])

    def _group(self, told: Told, work: GroupWork, until: int) -> GroupDone:
        # While it works, a kernel is not kept: an error would leave something in it.
        kept = self._kernels.pop(work.group) if work.group in self._kernels else _made(told, work.group)
        kernel, texts, lineage = kept
        kernel.forget()
        lineage.keep([])
        if texts.crowded:
            texts.keep(kernel.codes())
        lineage.restore(work.lineage)
        lineage.document_ids = lambda docids: work.ids
        lineage.begin()
        kernel.restore(work.state)
        events = {name: as_columns(schema, table, texts) for name, (schema, table) in work.events.items()}
        found = [
            Found(one.schema, as_table(one.schema, one.events, texts), one.at, one.statements)
            for one in kernel.run(events, until)
        ]
        done = GroupDone(work.group, found, kernel.state(), kernel.instances(), kernel.due(), new_sets(lineage))
        self._kernels[work.group] = kept
        return done


def _made(told: Told, group: str) -> tuple[Kernel, Texts, Lineage]:
    texts, lineage = Texts(), Lineage(FIRST)
    kernel = Kernel(texts, lineage, rules=told.rules, hashed=told.hashed)
    for statement in told.groups[group]:
        kernel.add(*statement)
    return kernel, texts, lineage


def as_table(schema: Schema, events: Columns, texts: Texts) -> pa.Table:
    """Returns events as any process can read them."""
    return pa.table(saved(events, schema, texts, ""))


def as_columns(schema: Schema, table: pa.Table, texts: Texts) -> Columns:
    """Returns events that `as_table` has made, which are some."""
    return loaded(table, schema, texts, "")
