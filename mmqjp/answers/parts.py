"""What an engine is made of: the parts that its batches go through, each opened on what the store has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from feeds.document import Clock
from join_stage.joiner import JoinEngine
from mmqjp.answers.allowance import Allowance
from mmqjp.answers.older_outputs import number_outputs
from mmqjp.answers.operators import MakeOperators
from mmqjp.answers.outbox import Outbox
from mmqjp.answers.step import Answering
from mmqjp.documents.admission import Admission
from mmqjp.documents.records import Records
from mmqjp.documents.watermarks import Timing, Watermarks, greatest_times, is_bounded
from mmqjp.garbage import collector_passes_over
from mmqjp.queries.changes import Subscribing
from mmqjp.queries.prepared import Preparation
from mmqjp.queries.registry import Registry
from mmqjp.queries.saved import KeptQueries
from mmqjp.state.eviction import Eviction
from mmqjp.state.join_state import JoinState
from mmqjp.state.migration import migrate
from mmqjp.tables.ledger import Ledger
from xpath_stage.evaluator import XPathStage
from xpath_stage.spark import SparkStage


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an engine, in the way of data."""

    store: JoinEngine
    ledger: Ledger
    watermarks: Watermarks
    records: Records
    stage1: XPathStage | SparkStage
    saved: KeptQueries
    registry: Registry
    changes: Subscribing
    state: JoinState
    eviction: Eviction
    admission: Admission
    outbox: Outbox
    answering: Answering
    now: Clock


def assemble(
    store: JoinEngine,
    ledger: Ledger,
    stage1: XPathStage | SparkStage,
    timing: Timing,
    allowance: Allowance,
    max_document: int | None,
    max_nodes: int | None,
    make_operators: MakeOperators,
    now: Clock,
) -> Parts:
    """The parts over a store, whose queries are registered; a store of an older format is brought up to date. A
    document has at most `max_document` bytes, and `max_nodes` elements and attributes; None is no limit. Raises
    StoreError for a store that cannot be read."""
    with collector_passes_over():
        saved, preparation = KeptQueries(store), Preparation()
        registry = Registry(saved.catalog(), stage1, store)
        if not migrate(store, ledger, saved, registry, preparation, partial(number_outputs, store, ledger)):
            saved.restore(registry, preparation)
        changes = Subscribing(store, ledger, saved, registry, preparation, now)
    greatest: Mapping[str, int] = greatest_times(store, ledger) if is_bounded(timing.lateness) else {}
    watermarks, records = Watermarks(timing, greatest, now()), Records(store)
    state = JoinState(store, ledger, registry, stage1, records)
    admission = Admission(store, watermarks, registry.sources, state.behind, now, max_document, max_nodes)
    eviction = Eviction(store, ledger, registry, watermarks, state, now)
    outbox = Outbox(store, ledger)
    operators = make_operators(registry, records, ledger, watermarks)
    answering = Answering(stage1, store, ledger, registry, records, state, outbox, operators, allowance)
    return Parts(
        store, ledger, watermarks, records, stage1, saved, registry, changes, state, eviction, admission, outbox,
        answering, now,
    )  # fmt: skip
