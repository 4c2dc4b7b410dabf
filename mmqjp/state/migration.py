"""Migrates a store of an older format, in one batch. Up to format 3, two processes could number different chains of
functions equally, so derived values are recomputed from documents. Up to format 4, outputs had no numbers or ids, and
sink positions were batches. Up to format 5, queries had no forms. Formats 7 to 9 add tables, which start empty. Format
10 has a word order, and queries that readers of format 9 do not know: `near`, absences, PATTERN."""

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
"""Bit position of the chain number in a node id, up to format 3."""

_OLD_PLAIN = (1 << OLD_CHAIN_SHIFT) - 1

FORMAT_WITH_PLACEMENTS, FORMAT_WITH_CHAINS, FORMAT_WITH_OUTPUT_IDS, FORMAT_WITH_FORMS = 3, 4, 5, 6
"""Formats that introduced query placements, numbered chains, output ids, and query forms."""


def migrate(
    store: JoinEngine,
    ledger: Ledger,
    stored: StoredQueries,
    registry: Registry,
    compiler: Compiler,
    number_outputs: Callable[[], None],
) -> bool:
    """Migrates an older store in a batch of its own, and registers its queries. Returns whether it did.

    `number_outputs` migrates the outputs. The store has already created new tables and columns, and converted changed
    ones.
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
    """Recomputes, within a batch, the derived values in the join state of formats 1 to 3.

    `catalog` has the queries that need them; `stage1` numbers new groups of edges. Skips documents that are in the join
    state but not in `documents`: no join needs them.
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
    schema = TABLES["match_rows"]
    rows = store.read("match_rows", schema.names)
    nodes = pc.list_flatten(rows["bindings"]).to_numpy()
    if not (nodes > _OLD_PLAIN).any():
        return
    lists = rows["bindings"].combine_chunks()
    plain = pa.ListArray.from_arrays(lists.offsets, pa.array(lists.values.to_numpy() & _OLD_PLAIN))
    store.drop_before("match_rows", "match", store.highest("match_rows", "match") + 1)
    store.append("match_rows", rows.set_column(schema.get_field_index("bindings"), "bindings", plain))
