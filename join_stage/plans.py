"""The protocols of engines and of their plans, which answer batches: `basic`, `views` or `signature`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NoReturn, Protocol

import pyarrow as pa

from common.errors import InputError
from common.files import make_inside
from join_stage.protocol import Batch, Costs, JoinScope, Matches, TemplateTable, runs_manifest
from join_stage.store.protocol import RUNS, StoreError, TableStore
from templates.catalog import StepEdge, TemplateRow
from templates.witness import Witnesses

PLANS = ("basic", "views", "signature")

DEFAULT_PLAN = "signature"


class UnknownPlan(InputError, ValueError):
    """There is no plan with this name."""

    def __str__(self) -> str:
        return f"a plan is one of {', '.join(PLANS)}, not {self.args[0]!r}"


class JoinEngine(TableStore, Protocol):
    """A store that joins the documents of batches with the join state, which it keeps, within its running batch."""

    @property
    def plan(self) -> JoinPlan:
        """Has the rows of R_T. They are not stored, but rebuilt from queries when a store is opened."""

    def join(self, batch: Witnesses, first_docid: int, scope: JoinScope) -> Matches:
        """Adds witnesses to the join state, and answers all templates for them. Documents have ids from `first_docid`
        on, greater than all earlier ones. Read the matches before the next call."""

    def extend(self, witnesses: Witnesses, *, whole: bool = False) -> None:
        """Adds witnesses of earlier documents without finding matches. `r_docts` has only documents that the state
        lacks; with `whole`, the witnesses are all those of these documents."""

    def evict(self, before: int) -> None:
        """Drops the join state of documents that begin before a time in microseconds, as far as practical."""

    def drop_groups(self, edges: Collection[StepEdge]) -> Collection[int]:
        """Drops groups without rows, and those with none of `edges`, rows included. Returns the remaining numbers."""

    def drop_derived(self, node: int) -> None:
        """Drops the join state's rows with node ids from `node` on, those of derived values."""

    def mends(self, error: Exception) -> bool:
        """Called after rollback. Whether damaged derived files caused the error, which the next batch rebuilds."""


class JoinPlan:
    """Answers batches over the join state. By default it keeps no state of documents or groups; state that it keeps is
    committed and rolled back with the store's batches."""

    in_sql: ClassVar[bool] = True
    """Whether the plan reads the batch from r_bin_w, r_doc_w and r_docts_w, and the join state from tables."""

    def __init__(self) -> None:
        self.costs = Costs()

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Adds rows to the R_T of a template, replacing rows with the same id, from the next `join` on."""

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Removes rows from the R_T of a template, from the next `join` on."""

    def join(self, batch: Batch) -> Matches:
        """Answers all templates for a batch, which the state already holds."""
        raise NotImplementedError

    def load(self, end: int) -> None:
        """Loads, in a batch, what the first `join` needs of the documents before docid `end`."""

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Called before witnesses of earlier documents enter the join state. `whole`: they are all of these
        documents'."""

    def evicted(self, docids: Callable[[], pa.ChunkedArray], before: int) -> None:
        """Called when documents leave the state. All of them begin before the time `before`."""

    def forget(self) -> None:
        """Called when the join state changes otherwise, or when the plan may lack some of it: the plan reloads it."""

    def regrouped(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        """Called after all groups but `kept` and those of documents were dropped, and state with none of `edges`."""

    def settle(self) -> None:
        """Called before commit; may append to tables. Raises StoreError."""

    def committed(self) -> None: ...

    def rolled_back(self, *, whole: bool) -> None:
        """Called after rollback. Without `whole`, a commit failed and may be only partly undone."""

    def mends(self, error: StoreError) -> bool:
        """Called after rollback. Whether damaged files of the plan caused the error, which the next batch rebuilds."""
        return False

    def close(self) -> None: ...

    def counters(self) -> dict[str, int]:
        """Counters of the plan since the engine was opened."""
        return {}


class OnlyRead:
    """Ignores rows of R_T, since no batch follows, and refuses all other changes with StoreError."""

    plan = JoinPlan()

    def rollback(self, *_: object) -> None: ...

    follow = rollback

    def begin(self, *_: object, **__: object) -> NoReturn:
        raise StoreError("the store was opened to be read only")

    commit = append = join = extend = evict = drop_groups = drop_derived = drop_before = begin

    def mends(self, error: Exception) -> bool:
        return False


def opened_plan(
    store: TableStore, name: str, directory: Path | None, plans: Mapping[str, Callable[..., JoinPlan]]
) -> JoinPlan:
    """A plan of an engine; `signature` gets a folder for runs, if the store has a directory. Raises UnknownPlan."""
    if name not in plans:
        raise UnknownPlan(name)
    if name == "signature":
        return plans[name](None if directory is None else make_inside(directory, RUNS))
    if directory is not None and runs_manifest(store) is None:
        shutil.rmtree(directory / RUNS, ignore_errors=True)
    return plans[name]()
