"""`mmqjp check-store`: verifies the checksums of a store's files and the references between its rows, and repairs what
can be derived from the rest. DuckDB reads the store, whichever engine wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from common.arrays import Ints
from common.errors import MmqjpError
from common.files import make_inside
from feeds.documents import now_us
from feeds.fetch.state import FetchStore
from join_stage.plans import DEFAULT_PLAN, JoinEngine
from join_stage.protocol import FLAT_STORE, runs_manifest
from join_stage.signature.runs import CHECKED_AT_ONCE, PagePool, RunFile
from join_stage.store import protocol
from join_stage.views import CACHE_BYTES
from mmqjp.answers.events_run import stored_snapshot
from mmqjp.answers.fan_out import SINK_PREFIX, Position
from mmqjp.commands.command_line import FAILED, Failure, debug_option
from mmqjp.engine import Session
from mmqjp.process import pluralise, printable_line
from mmqjp.service.drops import state_file
from mmqjp.service.spool import ANSWERS, COMMANDS, SPOOL
from mmqjp.state.engine_choice import SPARK, Ownership, ReadLock, open_store, stored_engine
from mmqjp.tables.schema import NEXT_IDS, QUERY_TABLES, SCHEMA, SETTING_TABLES, read_settings

QUARANTINE = "damaged"  # the subdirectory of a state directory to which --repair moves damaged files
MOST_PASSES = 5  # maximum number of repairs: other rows may refer to those that one drops


class Repairs(NamedTuple):
    """The repairs to make: files `moved` to quarantine; `rows` to drop, by table and condition; `files` of a table to
    omit from the manifest, on Spark; `postings` to rebuild; the `mark` to remove, which accepts lost commits."""

    moved: tuple[Path, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    postings: bool = False
    mark: bool = False


class Damage(NamedTuple):
    """A fault. `remedy` describes `repairs`, which --repair makes; without them, only a copy helps."""

    place: str
    what: str
    remedy: str = ""
    repairs: Repairs | None = None

    def to_dict(self, *, mended: bool) -> dict[str, object]:
        return {"place": self.place, "what": self.what, "remedy": self.remedy or None, "mended": mended}


REBUILT = "rebuilds the postings from the tables", Repairs(postings=True)

ESSENTIAL = frozenset((*QUERY_TABLES, *SETTING_TABLES, "definitions", "removed_definitions", "groups"))
"""Tables without whose rows a store cannot be opened."""


class RowCheck(NamedTuple):
    """Rows of a table that an intact store does not have, by a condition that `reads` tables. In messages `what`
    follows their number, and `column` gives an example. `drops`: dropping them does no further harm."""

    table: str
    condition: str
    what: str
    column: str
    reads: tuple[str, ...]
    drops: bool = False


def _refers(table: str, column: str, target: str, key: str) -> RowCheck:
    condition = f"{column} NOT IN (SELECT o.{key} FROM {target} o WHERE o.{key} IS NOT NULL)"
    return RowCheck(
        table, condition, f"with a {column} that is missing in {target}", column, (table, target), drops=True
    )


_OF_QUERIES = (
    "memberships", "placements", "inner_placements", "removed_queries", "pauses", "query_sources", "withheld",
    "untold", "told",
)  # fmt: skip

_PRUNED = "(SELECT coalesce(min(p.t1), 0) FROM answers p)"
"""--keep drops matches, documents and all answers that end before a time, so everything that begins later must
exist."""

_LACK_MATCHES = f"""t0 >= {_PRUNED} AND answer IN (
  SELECT l.answer FROM answer_matches l WHERE l.match NOT IN (SELECT m.match FROM match_rows m))"""

_LACK_DOCUMENTS = f"""t0 >= {_PRUNED} AND (
  docid1 NOT IN (SELECT d.docid FROM documents d) OR docid2 NOT IN (SELECT d.docid FROM documents d))"""

_WRONGLY_NUMBERED = """first_seq IN (SELECT first_seq FROM (
  SELECT first_seq, last_seq, sum(recipients) AS outputs, lead(first_seq) OVER (ORDER BY first_seq) AS next
  FROM answers GROUP BY first_seq, last_seq
) WHERE last_seq - first_seq + 1 <> outputs OR next <= last_seq)"""

_WRONGLY_RECEIVED = """answer IN (SELECT a.answer FROM answers a LEFT JOIN (
  SELECT answer, count(*) AS members FROM recipients GROUP BY answer
) r ON r.answer = a.answer WHERE a.recipients <> coalesce(r.members, 0))"""

_RECEIVING = ("answers", "withheld", "memberships", "added_queries")

ROW_CHECKS = (
    *(_refers(table, "qid", "added_queries", "qid") for table in _OF_QUERIES),
    _refers("placements", "template", "templates", "template"),
    _refers("inner_placements", "template", "templates", "template"),
    _refers("removed_definitions", "id", "definitions", "id"),
    _refers("answers", "form", "added_queries", "form")._replace(drops=False),
    RowCheck("answers", _LACK_MATCHES, "lack matches", "answer", ("answers", "answer_matches", "match_rows")),
    RowCheck("match_rows", _LACK_DOCUMENTS, "lack documents", "match", ("answers", "match_rows", "documents")),
    RowCheck("answers", _WRONGLY_NUMBERED, "have wrong numbers of outputs", "answer", ("answers",)),
    RowCheck("answers", _WRONGLY_RECEIVED, "had other recipients when they were made", "answer", _RECEIVING),
)

ON_DUCKDB = (
    _refers("bound", "docid", "r_docts", "docid"),
    _refers("bound", "grp", "groups", "grp"),
    _refers("r_doc", "docid", "r_docts", "docid"),
)
"""Checks of the join state. On Spark it is evicted file by file, so its tables keep different documents."""


class StoreCheck:
    """Checks a store that no other process writes. `files` and `rows` count what was compared."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.engine: str | None = None
        self.files = self.rows = 0

    def faults(self) -> Iterator[Damage]:
        try:
            self.engine = stored_engine(self._directory)
            if self.engine is None:
                yield Damage(str(self._directory), "there is no store in it")
                return
            damaged = set[str]()
            for fault in self._files_of_spark(damaged) if self.engine == SPARK else self._log():
                yield fault
                if fault.place in (protocol.SPARK_MANIFESTS, protocol.DUCKDB_FILE):
                    return  # it cannot be trusted about the rest
            with closing(_reader(self._directory)) as reader:
                yield from self._tables(reader, damaged)
                yield from self._postings(reader, damaged)
                yield from self._states(reader, damaged)
        except (MmqjpError, OSError) as error:
            yield Damage(self.engine or str(self._directory), str(error))
        yield from self._beside()

    # ------------------------------------------------------------ files

    def _log(self) -> Iterator[Damage]:
        from join_stage.store.duckdb import CommitMark

        self.files += 1
        try:
            CommitMark(self._directory).check()
        except protocol.StoreError as error:
            yield Damage(protocol.DUCKDB_FILE, str(error), "goes on without the lost commits", Repairs(mark=True))

    def _files_of_spark(self, damaged: set[str]) -> Iterator[Damage]:
        from join_stage.store.spark.manifests import look_at, newest_files

        schema = FLAT_STORE | SCHEMA
        self.files += 1
        try:
            files = newest_files(self._directory, schema)
        except protocol.StoreError as error:
            folder = self._directory / protocol.SPARK_MANIFESTS
            found = [folder / f"{one}.json" for one in protocol.manifest_batches(self._directory)]
            is_newest_bad = str(found[-1]) in str(error) if found else False
            able = len(found) > (1 if is_newest_bad else 0)
            roll_back = Repairs(tuple(found[-1:] if is_newest_bad else ()), mark=True)
            mends = ("goes on without the lost commits", roll_back) if able else ()
            yield Damage(protocol.SPARK_MANIFESTS, str(error), *mends)
            return
        for table, several in files.items():
            for file in several:
                self.files += 1
                path = self._directory / schema.folder(table) / file.name
                try:
                    look_at(path, file, whole=True)
                except protocol.StoreError as error:
                    damaged.add(table)
                    place = str(path.relative_to(self._directory))
                    if table in ESSENTIAL:
                        yield Damage(place, str(error))
                        continue
                    remedy = f"leaves out its {pluralise(file.rows, 'row')} of {table}"
                    # Afterwards postings may have more documents than the tables.
                    left_out = Repairs((path,), files=((table, file.name),), postings=True)
                    yield Damage(place, str(error), remedy, left_out)

    # ------------------------------------------------------------ tables

    def _tables(self, reader: JoinEngine, damaged: set[str]) -> Iterator[Damage]:
        """Reads all values of all tables, for DuckDB to verify their checksums."""
        for table in reader.schema.tables:
            if table in damaged:
                continue
            try:
                (row,) = reader.select(f"SELECT count(*) AS n, bit_xor(hash(t)) AS digest FROM {table} t").to_pylist()
                self.rows += row["n"]
            except Exception as error:  # DuckDB's, of many classes, or of Arrow
                damaged.add(table)
                yield Damage(table, f"it cannot be read: {str(error).splitlines()[0]}")

    def _postings(self, reader: JoinEngine, damaged: set[str]) -> Iterator[Damage]:
        manifest = None if "posting_runs" in damaged else runs_manifest(reader)
        known: Ints | None = None
        for name, low in [] if manifest is None else json.loads(manifest)["runs"]:
            self.files += 1
            try:
                file = RunFile(self._directory / protocol.RUNS / name, PagePool())
                file.check()
            except protocol.DamagedRun as error:
                yield Damage(f"{protocol.RUNS}/{name}", str(error), *REBUILT)
                continue
            if known is None and "r_docts" not in damaged:
                known = np.sort(reader.read("r_docts", ["docid"])["docid"].to_numpy())
            if known is not None and (unknown := _unknown(file, low, known)):
                what = f"it has postings of {pluralise(unknown, 'document')} that the join state does not have"
                yield Damage(f"{protocol.RUNS}/{name}", what, *REBUILT)

    # ------------------------------------------------------------ states of operators and sinks, and files beside

    def _states(self, reader: JoinEngine, damaged: set[str]) -> Iterator[Damage]:
        if "pattern_state" not in damaged:
            try:
                stored_snapshot(reader)
            except Exception as error:  # of Arrow
                yield Damage("pattern_state", f"the state of event queries cannot be read: {error}")
        checks = ROW_CHECKS if self.engine == SPARK else ROW_CHECKS + ON_DUCKDB
        if damaged.isdisjoint(("settings", "answers", "earlier_outputs")):
            noted = json.loads(read_settings(reader, NEXT_IDS).get("", "[0, 0, 0, 0]"))
            last = max(noted[3] - 1, reader.highest("answers", "last_seq"), reader.highest("earlier_outputs", "seq"))
            for sink, value in read_settings(reader, SINK_PREFIX).items():
                if (acked := Position.from_setting(value).acked) > last:
                    yield Damage("settings", f"the sink {sink} has output {acked}, but the last one is {last}")
            for table, column in (("gaps", "last"), ("undelivered", "seq")):
                what = f"about outputs after {last}, the last one"
                checks += (RowCheck(table, f"{column} > {last}", what, column, (table,), drops=True),)
        for check in checks:
            if damaged.isdisjoint(check.reads):
                sql = f"SELECT count(*) AS n, any_value({check.column}) AS one FROM {check.table}"
                (row,) = reader.select(f"{sql} WHERE {check.condition}").to_pylist()
                if row["n"]:
                    what = f"{pluralise(row['n'], 'row')} {check.what}, such as {check.column} {row['one']}"
                    dropped = Repairs(rows=((check.table, check.condition),))
                    yield Damage(check.table, what, *(("drops them", dropped) if check.drops else ()))

    def _beside(self) -> Iterator[Damage]:
        for folder in (COMMANDS, ANSWERS):
            for path in sorted((self._directory / SPOOL / folder).glob("*.json")):
                self.files += 1
                try:
                    json.loads(path.read_bytes())
                except ValueError:
                    place = str(path.relative_to(self._directory))
                    yield Damage(place, "it is no JSON", f"moves it to {QUARANTINE}/", Repairs((path,)))
        path = state_file(self._directory)
        if path.is_file():
            self.files += 1
            try:
                with closing(FetchStore(path)) as store:
                    self.rows += len(store.feeds())
            except (MmqjpError, OSError) as error:
                yield Damage(str(path.relative_to(self._directory)), str(error))


def _reader(directory: Path) -> JoinEngine:
    return open_store(None, directory, DEFAULT_PLAN, CACHE_BYTES, read_only=True)


def _unknown(file: RunFile, low: int | None, known: Ints) -> int:
    """The number of documents of a run that are neither evicted nor known."""
    step, found = CHECKED_AT_ONCE // file.head.types[0].itemsize, set[int]()
    for first in range(0, len(file.postings), step):
        some = file.postings.range(first, min(first + step, len(file.postings)))
        docids = np.unique(some["docid"].astype(np.int64)[some["time"] >= (file.head.first if low is None else low)])
        docids += file.head.base
        at = np.minimum(known.searchsorted(docids), max(len(known) - 1, 0))
        found.update(docids[known[at] != docids].tolist() if len(known) else docids.tolist())
    return len(found)


# ---------------------------------------------------------------- repairs


def apply(directory: Path, repairs: Repairs) -> None:
    """Repairs a store that this process holds. Raises StoreError, OSError."""
    (_mend_spark if stored_engine(directory) == SPARK else _mend_duckdb)(directory, repairs)
    for path in repairs.moved:
        if path.exists():
            _quarantine(directory, path)
    if repairs.postings:
        for path in (directory / protocol.RUNS).glob("*"):
            path.unlink()


def _mend_duckdb(directory: Path, repairs: Repairs) -> None:
    import duckdb

    from join_stage.duckdb import DuckDBEngine

    file, log = directory / protocol.DUCKDB_FILE, directory / f"{protocol.DUCKDB_FILE}.wal"
    try:
        try:
            connection = duckdb.connect(str(file))
        except duckdb.Error:
            if not repairs.mark or not log.exists():
                raise
            _quarantine(directory, log)
            connection = duckdb.connect(str(file))
        with connection:
            connection.begin()
            for table, condition in [*repairs.rows, *([("posting_runs", "true")] if repairs.postings else [])]:
                connection.execute(f"DELETE FROM {table} WHERE {condition}")
            connection.commit()
    except duckdb.Error as error:
        raise protocol.StoreError(
            f"the store cannot be repaired: {error}; restore an older copy of the store"
        ) from error
    if repairs.mark:
        (directory / protocol.COMMITTED).unlink(missing_ok=True)
    DuckDBEngine(directory, schema=SCHEMA).close()  # closing writes the mark


def _quarantine(directory: Path, path: Path) -> None:
    make_inside(directory, QUARANTINE)
    path.rename(directory / QUARANTINE / "-".join(path.relative_to(directory).parts))


def _mend_spark(directory: Path, repairs: Repairs) -> None:
    from join_stage.store.spark.manifests import Manifest, newest_files, write_data_file, write_manifest

    if repairs.mark:  # the next pass sees what the older manifest lists
        (directory / protocol.COMMITTED).unlink(missing_ok=True)
        return
    schema = FLAT_STORE | SCHEMA
    files = newest_files(directory, schema)
    gone = repairs.files
    kept = {name: tuple(file for file in some if (name, file.name) not in gone) for name, some in files.items()}
    batch = 1 + protocol.manifest_batches(directory)[-1]
    for table in {table: None for table, _ in repairs.rows}:  # none is part of the join state
        lost = " OR ".join(f"({condition})" for name, condition in repairs.rows if name == table)
        with closing(_reader(directory)) as reader:
            rows = reader.select(f"SELECT * FROM {table} WHERE ({lost}) IS NOT TRUE").cast(schema.tables[table])
        path = directory / schema.folder(table) / f"{batch}-0-repaired.parquet"
        kept[table] = (write_data_file(path, [rows], schema.tables[table]),) if len(rows) else ()
    if repairs.postings:
        kept["posting_runs"] = ()
    write_manifest(directory / protocol.SPARK_MANIFESTS / f"{batch}.json", Manifest(kept, now_us()), schema)


def mend(directory: Path, passes: int = MOST_PASSES) -> tuple[list[Damage], list[Damage], StoreCheck]:
    """Repairs up to `passes` times. Returns the repaired and the remaining faults, and the last check."""
    mended: list[Damage] = []
    while True:
        check = StoreCheck(directory)
        faults = list(check.faults())
        able = [fault for fault in faults if fault.repairs is not None]
        if not able or passes == 0:
            return mended, faults, check
        repairs = [fault.repairs or Repairs() for fault in able]
        moved = tuple(path for one in repairs for path in one.moved)
        rows = tuple(row for one in repairs for row in one.rows)
        files = tuple(file for one in repairs for file in one.files)
        postings, mark = any(one.postings for one in repairs), any(one.mark for one in repairs)
        apply(directory, Repairs(moved, rows, files, postings, mark))
        mended += able
        passes -= 1


@click.command("check-store")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--repair", is_flag=True, help="Repair what can be repaired. Copy DIR first.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@debug_option
@click.pass_context
def check_store(context: click.Context, directory: Path, repair: bool, as_json: bool) -> None:
    """Verify the checksums and references of a store, and report faults.

    \b
    Examples:
      mmqjp check-store state/
      mmqjp check-store state/ --repair

    No other process may hold the store. The exit status is 1 if faults remain.
    """
    if repair and stored_engine(directory) is None:
        raise Failure(f"there is no store in {directory}: name the state directory of one")
    lock = Ownership(directory) if repair else ReadLock(directory)
    try:
        mended, faults, check = mend(directory, MOST_PASSES if repair else 0)
    finally:
        lock.release()
    if not faults:
        try:
            Session(state=directory, read_only=True, quiet=True).close()
        except protocol.Outdated:  # it has no queries yet, or has lost all commits
            pass
        except (MmqjpError, OSError) as error:
            faults = [Damage(str(directory), f"it cannot be opened: {error}")]
    if as_json:
        records = [fault.to_dict(mended=True) for fault in mended] + [fault.to_dict(mended=False) for fault in faults]
        counts = {"engine": check.engine, "files": check.files, "rows": check.rows}
        click.echo(json.dumps(counts | {"faults": records}, ensure_ascii=False))
    else:
        for word, fault in [("repaired", fault) for fault in mended] + [("wrong", fault) for fault in faults]:
            remedy = f"; --repair {fault.remedy}" if fault.remedy else "; restore an older copy of the store"
            if not fault.remedy and "older copy" in fault.what:
                remedy = ""
            click.echo(f"{word}: {fault.place}: {printable_line(fault.what)}{remedy}")
        compared = f"{pluralise(check.files, 'file')} and {pluralise(check.rows, 'row')} compared"
        click.echo(f"{compared}, {pluralise(len(faults), 'fault')}{f', {len(mended)} repaired' if repair else ''}")
    if faults:
        context.exit(FAILED)
