"""Migration: brings a store of an older format up to date, in one batch.

Up to format 3 two processes that wrote one store could give one number to two chains of functions, so the numbers
cannot be told; but what the join state has of derived values follows from its documents. Up to format 4 outputs had no
numbers and ids, and it was noted by batch how far they were written.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from join_stage.joiner import JoinEngine
from join_stage.store.protocol import whole_batch
from mmqjp.documents.records import Records, kept_documents
from mmqjp.queries.prepared import Preparation
from mmqjp.queries.registry import Registry
from mmqjp.queries.saved import KeptQueries
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.schema import TABLES
from templates.catalog import Catalog, Edge
from templates.witness import R_DOCTS, R_GROUP, Witnesses
from xpath_stage.evaluator import XPathStage

OLD_CHAIN_SHIFT = 52
"""How far the number of a chain of functions was shifted in a node id up to format 3."""

_OLD_PLAIN = (1 << OLD_CHAIN_SHIFT) - 1

PLACED, CHAINED, NUMBERED = 3, 4, 5
"""The formats since which it is written where queries stand, the numbers of chains are, and outputs have numbers."""


def migrate(
    store: JoinEngine,
    ledger: Ledger,
    saved: KeptQueries,
    registry: Registry,
    preparation: Preparation,
    number_outputs: Callable[[], None],
) -> bool:
    """Brings a store of an older format up to date, in a batch of its own: whether there was need to. The queries are
    registered by the way. `number_outputs` does what concerns outputs.

    What a format has more, tables and columns, the store has made already; what it keeps otherwise, it has rewritten.
    """
    if ledger.is_current:
        return False
    with whole_batch(store):
        if ledger.version < PLACED:
            saved.place_anew(registry, preparation)
        else:
            saved.restore(registry, preparation)
        if 0 < ledger.version < CHAINED:
            derive_anew(store, registry.catalog, registry.stage1)
        if 0 < ledger.version < NUMBERED:
            number_outputs()
        saved.save_catalog(registry.catalog)
        ledger.save_version()
    registry.stage1.finish_batch(committed=True)
    saved.saved((), registry.catalog)
    ledger.batch += 1
    return True


def derive_anew(store: JoinEngine, catalog: Catalog, stage1: XPathStage) -> None:
    """Drops, within a batch, what a store of format 1 to 3 has of derived values, and adds what the documents of its
    join state have of them for the queries of the catalog. New groups of edges have numbers of `stage1`.

    A document that is in the join state but not among those that are kept is one that no join can need.
    """
    store.drop_derived(1 << OLD_CHAIN_SHIFT)
    _clear_bindings(store)
    needs = catalog.derived()
    if not needs.steps:
        return
    own, records, times = XPathStage(), Records(store), R_DOCTS.empty_table()
    own.add(needs)
    groups: dict[int, list[Edge]] = {}
    for docids in kept_documents(store, {step.stream for step in needs.steps}, joined=True):
        records.load(docids)
        found = own.evaluate((r.docid, r.stream, r.t0, r.t1, r.tree) for r in map(records.__getitem__, docids))
        own.finish_batch(committed=True)
        for group, *edge in zip(*(found.r_group[name].to_pylist() for name in R_GROUP.names), strict=True):
            groups.setdefault(group, []).append((edge[0], edge[1]))
        r_bin = stage1.regrouped(found.r_bin, groups)
        store.extend(Witnesses(r_bin, stage1.new_groups(), found.r_doc, times))
        records.rest()


def _clear_bindings(store: JoinEngine) -> None:
    """Takes the numbers of functions out of what is written of matches."""
    schema = TABLES["match_rows"]
    rows = store.read("match_rows", schema.names)
    nodes = pc.list_flatten(rows["bindings"]).to_numpy()
    if not (nodes > _OLD_PLAIN).any():
        return
    lists = rows["bindings"].combine_chunks()
    plain = pa.ListArray.from_arrays(lists.offsets, pa.array(lists.values.to_numpy() & _OLD_PLAIN))
    store.drop_before("match_rows", "match", store.highest("match_rows", "match") + 1)
    store.append("match_rows", rows.set_column(schema.get_field_index("bindings"), "bindings", plain))
