"""Migration: brings a store of an older format up to date, in one batch.

Up to format 3, two processes that wrote one store could give the same number to two chains of functions. These numbers
cannot be resolved, so derived values are computed again from the documents. Up to format 4, outputs had no numbers and
ids, and positions of sinks were stored as batches. Up to format 5, queries had no forms. What formats 7 to 9
added are tables, which a store gets empty. Format 10 has an order of words, and queries that what reads format 9 does
not know: `near`, absences, PATTERN.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from join_stage.protocol import JoinEngine
from join_stage.store.protocol import whole_batch
from mmqjp.documents.record import Records, docid_batches
from mmqjp.queries.compile import Compiler
from mmqjp.queries.registry import Registry
from mmqjp.queries.stored import StoredQueries
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.schema import TABLES
from templates.catalog import Catalog, StepEdge
from templates.witness import R_DOCTS, R_GROUP, Witnesses
from xpath_stage.evaluator import XPathStage

OLD_CHAIN_SHIFT = 52
"""Up to format 3, the number of a chain of functions was shifted by this many bits in a node id."""

_OLD_PLAIN = (1 << OLD_CHAIN_SHIFT) - 1

FORMAT_WITH_PLACEMENTS, FORMAT_WITH_CHAINS, FORMAT_WITH_OUTPUT_IDS, FORMAT_WITH_FORMS = 3, 4, 5, 6
"""The formats that introduced placements of queries, numbered chains, ids of outputs, and forms of queries."""


def migrate(
    store: JoinEngine,
    ledger: Ledger,
    stored: StoredQueries,
    registry: Registry,
    compiler: Compiler,
    number_outputs: Callable[[], None],
) -> bool:
    """Migrates a store of an older format in a batch of its own, and registers its queries. Returns whether it did.

    `number_outputs` migrates the outputs. The store has already created tables and columns that are new in a format,
    and converted those that are stored differently.
    """
    if ledger.is_current:
        return False
    with whole_batch(store):
        if ledger.version < FORMAT_WITH_PLACEMENTS:
            stored.rebuild_placements(registry, compiler)
        else:
            stored.restore(registry, compiler)
        if 0 < ledger.version < FORMAT_WITH_CHAINS:
            derive_anew(store, registry.catalog, registry.stage1)
        if 0 < ledger.version < FORMAT_WITH_OUTPUT_IDS:
            number_outputs()
        if 0 < ledger.version < FORMAT_WITH_FORMS:
            stored.save_forms(registry.subscriptions.values())
        stored.save_catalog(registry.catalog)
        ledger.save_version()
    registry.stage1.finish_batch(committed=True)
    stored.committed((), registry.catalog)
    ledger.batch += 1
    return True


def derive_anew(store: JoinEngine, catalog: Catalog, stage1: XPathStage) -> None:
    """Computes again, within a batch, the derived values in the join state of a store of format 1 to 3.

    `catalog` has the queries that need them. New groups of edges get numbers from `stage1`. Documents that are in the
    join state but not in `documents` are skipped: no join can need them.
    """
    store.drop_derived(1 << OLD_CHAIN_SHIFT)
    _clear_bindings(store)
    needs = catalog.derived()
    if not needs.steps:
        return
    own, records, times = XPathStage(), Records(store), R_DOCTS.empty_table()
    own.add(needs)
    groups: dict[int, list[StepEdge]] = {}
    for docids in docid_batches(store, {step.stream for step in needs.steps}, joined=True):
        records.load(docids)
        found = own.evaluate((r.docid, r.stream, r.t0, r.t1, r.tree) for r in map(records.__getitem__, docids))
        own.finish_batch(committed=True)
        for group, *edge in zip(*(found.r_group[name].to_pylist() for name in R_GROUP.names), strict=True):
            groups.setdefault(group, []).append((edge[0], edge[1]))
        r_bin = stage1.regrouped(found.r_bin, groups)
        store.extend(Witnesses(r_bin, stage1.new_groups(), found.r_doc, times))
        records.release_trees()


def _clear_bindings(store: JoinEngine) -> None:
    """Removes the numbers of functions from stored matches."""
    schema = TABLES["match_rows"]
    rows = store.read("match_rows", schema.names)
    nodes = pc.list_flatten(rows["bindings"]).to_numpy()
    if not (nodes > _OLD_PLAIN).any():
        return
    lists = rows["bindings"].combine_chunks()
    plain = pa.ListArray.from_arrays(lists.offsets, pa.array(lists.values.to_numpy() & _OLD_PLAIN))
    store.drop_before("match_rows", "match", store.highest("match_rows", "match") + 1)
    store.append("match_rows", rows.set_column(schema.get_field_index("bindings"), "bindings", plain))
