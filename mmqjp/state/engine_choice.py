"""Chooses and opens the engine and its store, locks the state directory, and migrates a store of an older format, in
one batch. "auto" is the engine of the store, else Spark if it is at hand or needed, else DuckDB. The lock admits one
writer, or any number of readers.

Up to format 3, two processes could number different chains of functions equally, so derived values are recomputed from
documents. Up to format 4, outputs had no numbers or ids, and sink positions were batches. Up to format 5, queries had
no forms. Formats 7 to 9 add tables, which start empty. Format 10 has a word order, and queries that readers of format 9
do not know: `near`, absences, PATTERN. Format 11 adds the watermarks of belated documents, and visits of feeds;
12 the progress of streams with each batch; 13 the texts of queries as they were typed, and when a document arrived,
which is not known of earlier ones; 14 a journal on DuckDB."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import InvalidValue
from common.files import lock, make_lock, make_state, unlock
from feeds.documents import Now, now_us
from join_stage.plans import JoinEngine
from join_stage.store.protocol import DUCKDB_FILE, SPARK_MANIFESTS, StoreError, check_not_lost, whole_batch
from join_stage.store.spark.java import has_session, runs_in_submit
from mmqjp.documents.record import Records, docid_batches
from mmqjp.documents.watermarks import note_earlier_documents
from mmqjp.queries.registry import Registry
from mmqjp.queries.stored import Compiler, StoredQueries
from mmqjp.tables.schema import SCHEMA, TABLES, Ledger
from templates.catalog import Catalog, StepEdge
from templates.witness import R_DOCTS, R_GROUP, Witnesses
from xpath_stage.evaluator import XPathStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD_CHAIN_SHIFT = 52  # bit position of the chain number in a node id, up to format 3
_OLD_PLAIN = (1 << OLD_CHAIN_SHIFT) - 1

FORMAT_WITH_PLACEMENTS, FORMAT_WITH_CHAINS, FORMAT_WITH_OUTPUT_IDS, FORMAT_WITH_FORMS = 3, 4, 5, 6
"""Formats that introduced query placements, numbered chains, output ids, and query forms."""

FORMAT_WITH_VISITS = 11
VISITS_NEWS = (
    "the store was converted from an older format: documents that end before the watermark are answered from now on, "
    "unless --belated drop is given, and a stream that feeds fill has come as far as the visits of all its feeds"
)


def migrate(
    store: JoinEngine,
    ledger: Ledger,
    stored: StoredQueries,
    registry: Registry,
    compiler: Compiler,
    number_outputs: Callable[[], None],
) -> bool:
    """Migrates an older store in a batch of its own, and registers its queries. Returns whether it did. The store has
    already created new tables and columns, and converted changed ones. Logs what the user will notice."""
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
        if 0 < ledger.version < FORMAT_WITH_VISITS:
            note_earlier_documents(store, ledger)
        stored.save_catalog(registry.catalog)
        ledger.save_version()
    if 0 < ledger.version < FORMAT_WITH_VISITS:
        logging.getLogger("mmqjp").warning(VISITS_NEWS)
    registry.stage1.finish_batch(committed=True)
    stored.committed((), registry.catalog)
    ledger.batch += 1
    return True


def derive_anew(store: JoinEngine, catalog: Catalog, stage1: XPathStage) -> None:
    """Recomputes, within a batch, the values that the queries in `catalog` derive, for formats 1 to 3. Skips documents
    that are in the join state but not in `documents`: no join needs them."""
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
    if not (pc.list_flatten(rows["bindings"]).to_numpy() > _OLD_PLAIN).any():
        return
    lists = rows["bindings"].combine_chunks()
    plain = pa.ListArray.from_arrays(lists.offsets, pa.array(lists.values.to_numpy() & _OLD_PLAIN))
    store.drop_before("match_rows", "match", store.highest("match_rows", "match") + 1)
    store.append("match_rows", rows.set_column(schema.get_field_index("bindings"), "bindings", plain))


AUTO, DUCKDB, SPARK = "auto", "duckdb", "spark"

ENGINES = (AUTO, DUCKDB, SPARK)

MOST_FOR_DUCKDB = 256 << 20  # maximum bytes of documents for which "auto" chooses DuckDB


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and why it was chosen; `why` is empty for an explicit choice."""

    engine: str
    why: str = ""


def choose_engine(
    engine: str = AUTO,
    state: Path | None = None,
    asked_by: str | None = None,
    documents: int | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    session_runs: Callable[[], bool] | None = None,
) -> EngineChoice:
    """Resolves a name of ENGINES. `asked_by` names what requires Spark, such as the option --master; `documents` is
    their size in bytes, if known."""
    if engine != AUTO:
        return EngineChoice(engine)
    if state is not None and (stored := stored_engine(state)) is not None:
        return EngineChoice(stored, f"the store in {state} is on it")
    if asked_by is not None:
        return EngineChoice(SPARK, f"{asked_by} is given")
    if runs_in_submit(environ):
        return EngineChoice(SPARK, "spark-submit started this process")
    if (session_runs or has_session)():
        return EngineChoice(SPARK, "this process has a Spark session")
    most = MOST_FOR_DUCKDB >> 20
    if documents is not None and documents > MOST_FOR_DUCKDB:
        return EngineChoice(SPARK, f"the documents have more than {most} MiB; --engine duckdb starts sooner")
    return EngineChoice(DUCKDB, "nothing asks for spark" if documents is None else f"{most} MiB of documents or less")


def stored_engine(state: Path) -> str | None:
    """Returns the engine of a store; None if there is none. Raises StoreError if there are only parts of one."""
    if (state / DUCKDB_FILE).exists():
        return DUCKDB
    if (state / SPARK_MANIFESTS).exists():
        return SPARK
    check_not_lost(state)
    return None


def open_session(engine: str | SparkSession, master: str | None) -> SparkSession:
    """Returns the Spark session that `engine` is or names. Raises JavaNotFound if Spark cannot start, OtherSession if a
    session with another master runs, and InvalidValue for an unknown engine."""
    if isinstance(engine, str) and engine != SPARK:
        raise InvalidValue(f"an engine is 'auto', 'duckdb', 'spark' or a SparkSession, not {engine!r}")
    try:
        from join_stage.store.spark.session import spark_session, use_own_python
    except ModuleNotFoundError as error:
        advice = "install it, or take the engine duckdb"
        raise InvalidValue(f"the engine spark is not installed here ({error.name} is missing): {advice}") from error

    if isinstance(engine, str):
        return spark_session(master)
    use_own_python(engine)
    return engine


def directory_bytes(directory: Path) -> int:
    """Returns the total size of a directory's files, ignoring files that vanish meanwhile."""
    size = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def open_store(
    session: SparkSession | None, state: Path | None, plan: str, cache_bytes: int, *, read_only: bool = False
) -> JoinEngine:
    """Opens the store and its join engine: on Spark with a session, otherwise on DuckDB, which also reads Spark stores
    if `read_only`. Raises StoreError, UnknownPlan, and InvalidValue for `read_only` without a state directory."""
    if read_only and state is None:
        raise InvalidValue("a read-only engine needs a state directory: name one")
    if session is not None:
        from join_stage.spark.engine import SparkEngine, SparkReader

        if read_only and state is not None:
            return SparkReader(session, SCHEMA, state)
        return SparkEngine(session, state, plan, schema=SCHEMA, cache_bytes=cache_bytes)
    if read_only and state is not None:
        from join_stage.duckdb import DuckDBFilesReader, DuckDBReader

        return (DuckDBFilesReader if stored_engine(state) == SPARK else DuckDBReader)(SCHEMA, state)
    from join_stage.duckdb import DuckDBEngine

    return DuckDBEngine(state, plan, schema=SCHEMA, cache_bytes=cache_bytes)


OWNER_FILE = "owner"  # lock file: the writer locks it and writes its name; readers share the lock
LOCK_TIMEOUT = 120.0  # seconds that a writer waits for readers

LOCK_RETRY = 0.05


class InUse(StoreError):
    """Another process holds the state directory."""


class Ownership:
    """Exclusive lock on a state directory until `release` or the end of the process. Waits up to `timeout` seconds for
    readers; `sleep` waits between attempts. Raises InUse, with the holder's name, and StoreError if the directory
    cannot be created."""

    def __init__(
        self,
        directory: Path,
        now: Now = now_us,
        *,
        timeout: float = LOCK_TIMEOUT,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        try:
            make_state(directory)
            self._handle = make_lock(directory, OWNER_FILE)
        except OSError as error:
            raise StoreError(f"cannot open the store in {directory}: {error}") from error
        try:
            waited = 0.0
            while not lock(self._handle):
                if not lock(self._handle, shared=True):
                    raise InUse(f"the store in {directory} is in use by {_holder(directory / OWNER_FILE)}")
                unlock(self._handle)
                if waited >= timeout:
                    raise InUse(f"the store in {directory} is being read by others; try again when they are done")
                sleep(LOCK_RETRY)
                waited += LOCK_RETRY
        except BaseException as error:
            os.close(self._handle)
            if isinstance(error, OSError):
                raise StoreError(f"cannot open the store in {directory}: {error}") from error
            raise
        name = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:2]])
        os.ftruncate(self._handle, 0)
        os.write(self._handle, json.dumps({"pid": os.getpid(), "command": name, "since": now()}).encode())

    def release(self) -> None:
        os.close(self._handle)


class ReadLock:
    """Shared lock that keeps writers out until `release`, if the file can be opened. Raises InUse if one has it."""

    def __init__(self, directory: Path) -> None:
        self._handle: int | None = None
        with suppress(OSError):
            self._handle = os.open(directory / OWNER_FILE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._handle is not None and not lock(self._handle, shared=True):
                raise InUse(f"the store in {directory} is in use by {_holder(directory / OWNER_FILE)}")
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot read the store in {directory}: {error}") from error
            raise

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


def holder_of(directory: Path) -> str | None:
    """Says who writes a state directory; None if nobody does."""
    try:
        ReadLock(directory).release()
    except InUse as error:
        return str(error)
    return None


def is_held(directory: Path) -> bool:
    return holder_of(directory) is not None


def _holder(path: Path) -> str:
    try:
        notes = json.loads(path.read_bytes())
        since = datetime.fromtimestamp(notes["since"] // 1_000_000, UTC).isoformat().replace("+00:00", "Z")
        return f"process {int(notes['pid'])} ({notes['command']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
