"""The components of an engine: opens each one on the contents of the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from feeds.times import Now
from join_stage.joiner import JoinEngine
from mmqjp.answers.absence.operator import AbsenceOperator
from mmqjp.answers.event_output import EventOutput
from mmqjp.answers.inner_join_operator import InnerJoinOperator
from mmqjp.answers.operators import MakeOperators, Operators
from mmqjp.answers.outbox import Outbox
from mmqjp.answers.output_migration import number_outputs
from mmqjp.answers.patterns.kept import KeptDocuments
from mmqjp.answers.patterns.kernels import MakeKernel
from mmqjp.answers.patterns.limits import limits_of
from mmqjp.answers.patterns.patterns import Patterns
from mmqjp.answers.patterns.stored import StoredEvents
from mmqjp.answers.pipeline import Pipeline
from mmqjp.answers.query_operator import QueryOperator
from mmqjp.answers.quota import Quota
from mmqjp.answers.telling import Telling
from mmqjp.documents.admission import Admission
from mmqjp.documents.records import Records
from mmqjp.documents.watermarks import Timing, Watermarks, greatest_times, is_bounded
from mmqjp.garbage import gc_paused
from mmqjp.queries.changes import QueryChanges
from mmqjp.queries.compile import Compiler
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.queries.stored import StoredQueries
from mmqjp.state.eviction import Eviction
from mmqjp.state.join_state import JoinState
from mmqjp.state.migration import migrate
from mmqjp.state.told import Told
from mmqjp.tables.ledger import Ledger
from pattern_stage.kernel import Kernel
from xpath_stage.evaluator import XPathStage
from xpath_stage.spark import SparkStage

if TYPE_CHECKING:
    from mmqjp.answers.spread.spread import SpreadAnswers


@dataclass(frozen=True, slots=True)
class Components:
    """The components of an engine, in the order in which data flows through them."""

    store: JoinEngine
    ledger: Ledger
    watermarks: Watermarks
    records: Records
    stage1: XPathStage | SparkStage
    stored_queries: StoredQueries
    registry: Registry
    changes: QueryChanges
    state: JoinState
    eviction: Eviction
    admission: Admission
    outbox: Outbox
    pipeline: Pipeline
    now: Now


def make_operators(
    store: JoinEngine, registry: Registry, records: Records, ledger: Ledger, watermarks: Watermarks, quota: Quota
) -> Operators:
    """Creates the operators of the language: queries, inner joins, and absences of both."""
    queries, inner = QueryOperator(registry, records, quota), InnerJoinOperator(records)
    absences = AbsenceOperator(store, registry, records, ledger, watermarks, quota, queries, inner)
    return Operators({Subscription: queries, HiddenStream: inner}, absences)


def assemble(
    store: JoinEngine,
    ledger: Ledger,
    stage1: XPathStage | SparkStage,
    timing: Timing,
    quota: Quota,
    max_document: int | None,
    max_nodes: int | None,
    make_operators: MakeOperators,
    now: Now,
    *,
    has_executors: bool,
    make_kernel: MakeKernel = Kernel,
) -> Components:
    """Opens the components over a store and registers its queries. A store of an older format is migrated.

    A document may have at most `max_document` bytes, and at most `max_nodes` elements and attributes; None means
    unlimited. `has_executors` says whether the store is one on Spark. `make_kernel` makes what runs event queries.
    Raises StoreError if the store cannot be read.
    """
    with gc_paused(lasting=True):
        stored_queries, compiler = StoredQueries(store), Compiler()
        registry = Registry(stored_queries.catalog(), stage1, store)
        if not migrate(store, ledger, stored_queries, registry, compiler, partial(number_outputs, store, ledger)):
            stored_queries.restore(registry, compiler)
    greatest: Mapping[str, int] = greatest_times(store, ledger) if is_bounded(timing.lateness) else {}
    watermarks, records = Watermarks(timing, greatest, now()), Records(store)
    running = registry.events.running

    def made_of(stream: str) -> Collection[str] | None:
        joined = registry.joined_of(stream)
        return joined or (() if any(one.publishes for one in registry.named(stream)) else None)

    patterns = Patterns(
        running,
        registry.catalog,
        stage1.edges_of,
        StoredEvents(store, ledger),
        records,
        make_kernel,
        KeptDocuments(store, records),
        made_of,
        settle=timing.settle,
        limits=limits_of(quota),
    )
    watermarks.released = lambda: patterns.horizon

    def event_time(streams: Collection[str]) -> int:
        registry.events.settle()
        return patterns.first_since({} if patterns.moves else greatest_times(store, ledger), streams)

    changes = QueryChanges(store, ledger, stored_queries, registry, compiler, now, event_time)
    state = JoinState(store, ledger, registry, stage1, records)
    admission = Admission(records.ids, watermarks, registry.sources, state.late_by, now, max_document, max_nodes)
    told = Told(store)
    eviction = Eviction(store, ledger, registry, watermarks, state, now)
    spread = _spread_answers(store, ledger, registry, records, quota) if has_executors else None
    outbox = Outbox(store, ledger, spread)
    operators = make_operators(store, registry, records, ledger, watermarks, quota)
    telling = Telling(registry, told)
    event_output = EventOutput(registry, records, ledger)
    pipeline = Pipeline(
        stage1, store, ledger, registry, records, state, outbox, operators, quota, telling, patterns,
        event_output, spread,
    )  # fmt: skip
    return Components(
        store, ledger, watermarks, records, stage1, stored_queries, registry, changes, state, eviction, admission,
        outbox, pipeline, now,
    )  # fmt: skip


def _spread_answers(
    store: JoinEngine, ledger: Ledger, registry: Registry, records: Records, quota: Quota
) -> SpreadAnswers:
    from join_stage.spark.engine import SparkEngine
    from mmqjp.answers.spread.spread import SpreadAnswers

    return SpreadAnswers(cast(SparkEngine, store), ledger, registry, records, quota)
