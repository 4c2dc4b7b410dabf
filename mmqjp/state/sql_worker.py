"""Untrusted SQL in a process of its own, which may be killed: it judges, plans and runs a question over the files of
the store. Of a DuckDB store that an engine holds, it reads the very file and log through descriptors, as of the last
commit. Blocks that a checkpoint frees are overwritten after it only, so an answer holds if there was none meanwhile;
otherwise the question is asked again. Answers come back as Arrow, and are read as data."""

from __future__ import annotations

import io
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from common import child
from common.arrays import packed, unpacked
from join_stage.store import protocol as stores
from join_stage.store.duckdb import DuckDBQuestion, DuckDBStore, seclude, set_up

if TYPE_CHECKING:
    from collections.abc import Hashable

    from join_stage.duckdb import DuckDBFilesReader

RUNNING = 2  # maximum number of questions that run at once, and of processes, for each store
ADDRESS_SPACE = 3 << 30  # maximum address space of a process in bytes

MEMORY, SPILLED = "1GB", "1GB"
"""Memory that DuckDB takes in a process, and what it may write to the private directory of the process."""

THREADS, NICE = 2, 10  # threads of DuckDB in a process, and its niceness
PROCESSOR_SECONDS = 600  # maximum processor time of a question
FILES = 256  # maximum number of open files of a process, above those of a store in Parquet files
LARGEST = 1 << 30  # maximum size of an answer in bytes, whatever its bounds
MORE = 16 << 20  # bytes that Arrow may add to the size of an answer
IDLE = 60.0  # seconds without a question after which a process ends

LARGE_LOG, STALE = 16 << 20, 2.0
"""A version that takes long to open, with a log of this size in bytes, serves again for this many seconds."""

TRIES = 4  # times that a question is asked if the store is checkpointed meanwhile
TEXT = 4_000  # maximum length of an error, in characters

_ENDED = "the question ended the process that answers questions ({}): ask for less, or in other words"
_INTERRUPTED = "the question was interrupted"
_HEAD = struct.Struct("<IQ")
_ERRORS: Mapping[str, type[Exception]] = {"refused": stores.QuestionRefused, "store": stores.StoreError}
_DATABASE, _LOG = "store.duckdb", "store.duckdb.wal"


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """What a process opens: a version's `mark` and open files. `last` must not change while it is read."""

    mark: Hashable
    last: object
    takes_long: bool
    opens: Mapping[str, Any]
    descriptors: Sequence[int] = ()


class DuckDBSource:
    """A DuckDB store that this process writes. Others read it with these `arguments`."""

    arguments: Sequence[str] = ("duckdb",)

    def __init__(self, store: DuckDBStore) -> None:
        self._store = store

    def held(self) -> AbstractContextManager[object]:
        """Keeps snapshots valid for longer."""
        return self._store.checkpoints_held()

    @contextmanager
    def snapshot(self) -> Iterator[StoreVersion]:
        """The newest version."""
        with self._store.files() as files:
            schema = self._store.schema
            opens = {
                "lengths": [length for _, length in files.opened],
                "relations": sorted(schema.relations),
                "documented": schema.documented,
                "prefix": None if schema.numbered is None else schema.numbered.prefix,
            }
            takes_long, descriptors = files.mark[-1] > LARGE_LOG, [descriptor for descriptor, _ in files.opened]
            yield StoreVersion(files.mark, files.checkpoint, takes_long, opens, descriptors)

    def last(self) -> object:
        """Changes when snapshots may not be valid any more."""
        return self._store.checkpoint()


class ParquetSource:
    """A Spark store, which any process may read."""

    def __init__(self, state: Path) -> None:
        self._state, self.arguments = state, ("spark", str(state.absolute()))

    def held(self) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def snapshot(self) -> Iterator[StoreVersion]:
        yield StoreVersion(max(stores.manifest_batches(self._state), default=0), None, True, {})

    def last(self) -> object:
        """Never changes: files that are not of the newest version are kept for a while."""


Source = DuckDBSource | ParquetSource


class _Ended(Exception):
    """A process ended instead of an answer."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Worker:
    """A process, and the snapshot that it has open."""

    def __init__(self, source: Source) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="mmqjp-")
        command = [sys.executable, "-P", "-s", "-m", __name__, str(os.getpid()), *source.arguments]
        # Nothing else of the environment is passed on: it may have secrets.
        environment = {
            "TMPDIR": self._directory.name, "MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "LC_ALL": "C.UTF-8",
        }  # fmt: skip
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = child.start(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, environment=environment,
                    directory=Path(self._directory.name),
                )  # fmt: skip
        except BaseException:
            self._socket.close()
            self._directory.cleanup()
            raise
        self._last: object = None
        self._mark: Hashable = None
        self._stale_at = float("-inf")

    def is_well(self) -> bool:
        return self._process.poll() is None

    def ask(self, snapshot: StoreVersion, sql: str, bounds: stores.Bounds) -> pa.Table:
        """Raises _Ended, QuestionRefused and StoreError."""
        now = time.monotonic()
        serves_again = snapshot.takes_long and self._last == snapshot.last and now < self._stale_at
        opens = self._mark != snapshot.mark and not serves_again
        asked = {"sql": sql, "rows": bounds.rows, "size": bounds.size, "opens": snapshot.opens if opens else None}
        text = json.dumps(asked).encode()
        try:
            # The descriptors go with the first bytes.
            first = _HEAD.pack(len(text), 0)
            socket.send_fds(self._socket, [first], snapshot.descriptors if opens else ())
            self._socket.sendall(text)
            said, rows = self._receive(bounds)
        except (OSError, EOFError):
            self._process.kill()  # a reply that is none is no better than an end
            raise _Ended(self._process.wait()) from None
        if "opened" in said:
            self._mark, self._last, self._stale_at = snapshot.mark, snapshot.last, now + STALE
        if (error := said.get("error")) is not None:
            raise _ERRORS.get(error, stores.StoreError)(str(said.get("message")))
        return _unpacked(rows, bounds)

    def _receive(self, bounds: stores.Bounds) -> tuple[dict[str, Any], bytes]:
        length, size = _HEAD.unpack(_received(self._socket, _HEAD.size))
        if length > 16 * TEXT or size > min(LARGEST, LARGEST if bounds.size is None else bounds.size) + MORE:
            raise EOFError
        try:
            said = json.loads(_received(self._socket, length))
        except ValueError:
            raise EOFError from None
        return said if isinstance(said, dict) else {}, _received(self._socket, size)

    def kill(self) -> None:
        self._process.kill()

    def finish(self) -> None:
        self.kill()
        self._process.wait()
        self._socket.close()
        self._directory.cleanup()


class ConfinedQuestion:
    """A `Question` that another process answers. To interrupt it kills the process."""

    def __init__(self, workers: SqlWorkers, sql: str, bounds: stores.Bounds) -> None:
        self._workers, self.sql, self.bounds = workers, sql, bounds
        self._lock = Lock()
        self._worker: _Worker | None = None
        self.cut = False

    def answer(self) -> pa.Table:
        return self._workers.answer(self)

    def interrupt(self) -> None:
        with self._lock:
            self.cut = True
            if self._worker is not None:
                self._worker.kill()

    @contextmanager
    def at(self, worker: _Worker) -> Iterator[None]:
        """While a process answers it."""
        with self._lock:
            if self.cut:
                raise stores.QuestionInterrupted(_INTERRUPTED)
            self._worker = worker
        try:
            yield
        finally:
            with self._lock:
                self._worker = None


class SqlWorkers:
    """The processes that answer questions over one store. Thread-safe."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._places, self._lock = BoundedSemaphore(RUNNING), Lock()
        self._idle: list[_Worker] = []
        self._running: set[ConfinedQuestion] = set()
        self._is_closed = False

    def question(self, sql: str, bounds: stores.Bounds) -> ConfinedQuestion:
        return ConfinedQuestion(self, sql, bounds)

    def answer(self, question: ConfinedQuestion) -> pa.Table:
        while not self._places.acquire(timeout=child.LOOK):
            if question.cut:
                raise stores.QuestionInterrupted(_INTERRUPTED)
        try:
            with self._lock:
                if self._is_closed:
                    question.interrupt()
                self._running.add(question)
            with self._source.held():
                return self._answer(question)
        finally:
            with self._lock:
                self._running.discard(question)
            self._places.release()

    def _answer(self, question: ConfinedQuestion) -> pa.Table:
        for _ in range(TRIES):
            with self._source.snapshot() as snapshot:
                error: Exception | None = None
                try:
                    found = self._asked(question, snapshot)
                except (stores.QuestionRefused, stores.StoreError) as failure:
                    error = failure
                # A checkpoint may have overwritten what was read: neither answer nor error is to be trusted then.
                if self._source.last() != snapshot.last:
                    continue
                if error is not None:
                    raise error
                return found
        cause = "the store changes faster than the question is answered"
        raise stores.StoreError(f"{cause}: narrow it down, or ask again later")

    def _asked(self, question: ConfinedQuestion, snapshot: StoreVersion) -> pa.Table:
        status = 0
        for _ in range(TRIES):
            worker = self._taken()
            try:
                with question.at(worker):
                    return worker.ask(snapshot, question.sql, question.bounds)
            except _Ended as end:
                if question.cut:
                    raise stores.QuestionInterrupted(_INTERRUPTED) from None
                if status := end.status:  # it did not end by itself, before it got the question
                    break
            finally:
                self._put_back(worker)
        raise stores.QuestionRefused(_reason(status))

    def _taken(self) -> _Worker:
        with self._lock:
            while self._idle:
                if (worker := self._idle.pop(0)).is_well():  # the oldest, which has started
                    return worker
                worker.finish()
        return _Worker(self._source)

    def _put_back(self, worker: _Worker) -> None:
        """Keeps a process for the next question. For one that ended, others start at once, to be ready."""
        with self._lock:
            if not self._is_closed and worker.is_well():
                self._idle.append(worker)
                return
            while not self._is_closed and len(self._idle) < RUNNING:
                self._idle.append(_Worker(self._source))
        worker.finish()

    def close(self) -> None:
        """Ends the processes, and interrupts the questions that run."""
        with self._lock:
            self._is_closed = True
            for question in self._running:
                question.interrupt()
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.finish()
        for _ in range(RUNNING):  # none reads the store from now on
            self._places.acquire()
        self._places.release(RUNNING)


def _reason(status: int) -> str:
    if status == -signal.SIGXCPU:
        return f"the question took more than {PROCESSOR_SECONDS} s of processor time: narrow it down"
    what = f"status {status}"
    if status < 0:
        what = f"signal {signal.Signals(-status).name if -status in set(signal.Signals) else -status}"
    return _ENDED.format(what)


def _received(pipe: socket.socket, size: int) -> bytes:
    """Raises EOFError if the pipe ends early."""
    found = bytearray()
    while len(found) < size:
        if not (part := pipe.recv(min(size - len(found), 1 << 20))):
            raise EOFError
        found += part
    return bytes(found)


def _unpacked(rows: bytes, bounds: stores.Bounds) -> pa.Table:
    """Raises QuestionRefused for rows that are damaged, or past the bounds."""
    try:
        table = unpacked(rows)
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise stores.QuestionRefused(f"the answer cannot be read: {str(error)[:TEXT]}") from None
    bounds.check(table.num_rows, table.nbytes)
    return table


# ---------------------------------------------------------------- in that process


class _Held(io.RawIOBase):
    """A file of a fixed length, read through a descriptor."""

    def __init__(self, descriptor: int, length: int) -> None:
        self._descriptor, self._length, self._place = descriptor, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + (0, self._place, self._length)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        left = max(self._length - self._place, 0)
        found = os.pread(self._descriptor, left if size < 0 else min(size, left), self._place)
        self._place += len(found)
        return found


class _HeldQuestion(DuckDBQuestion):
    def __init__(
        self, connection: duckdb.DuckDBPyConnection, schema: stores.StoreSchema, sql: str, bounds: stores.Bounds
    ) -> None:
        super().__init__(connection, schema, sql, bounds)
        self._cursor.execute("USE mmqjp")


class _HeldStore:
    """A DuckDB store, from the descriptors of its file and log."""

    def __init__(self, opens: Mapping[str, Any], descriptors: Sequence[int], directory: str) -> None:
        prefix = opens["prefix"]
        numbered = None if prefix is None else stores.NumberedViews(prefix, "", "", "", lambda *_: "")
        tables = dict.fromkeys(opens["relations"], pa.schema([]))
        self._schema = stores.StoreSchema(tables, numbered=numbered, documented=tuple(opens["documented"]))
        self._descriptors = descriptors
        files = dict(zip((_DATABASE, _LOG), zip(descriptors, opens["lengths"], strict=True), strict=False))
        self._connection = duckdb.connect()
        set_up(self._connection)
        _limit(self._connection, directory)
        self._connection.register_filesystem(_file_system(files))
        self._connection.execute(f"ATTACH 'held://{_DATABASE}' AS mmqjp (READ_ONLY)")
        seclude(self._connection)

    def question(self, sql: str, bounds: stores.Bounds) -> DuckDBQuestion:
        return _HeldQuestion(self._connection, self._schema, sql, bounds)

    def close(self) -> None:
        self._connection.close()
        for descriptor in self._descriptors:
            os.close(descriptor)


def _file_system(files: Mapping[str, tuple[int, int]]) -> Any:
    """A file system of fsspec that has these files alone."""
    from fsspec.spec import AbstractFileSystem

    class HeldFiles(AbstractFileSystem):  # type: ignore[misc]  # its library has no types
        protocol = "held"
        cachable = False

        def _file(self, path: str) -> tuple[int, int]:
            try:
                return files[path.rpartition("/")[2]]
            except KeyError:
                raise FileNotFoundError(path) from None

        def open(self, path: str, mode: str = "rb", **_: object) -> _Held:
            return _Held(*self._file(path))

        def exists(self, path: str, **_: object) -> bool:
            return path.rpartition("/")[2] in files

        isfile = exists

        def info(self, path: str, **_: object) -> dict[str, object]:
            return {"name": path, "size": self._file(path)[1], "type": "file"}

        def size(self, path: str) -> int:
            return self._file(path)[1]

        def modified(self, path: str) -> float:
            return 0.0

    return HeldFiles()


def _limit(connection: duckdb.DuckDBPyConnection, directory: str) -> None:
    most = {"memory_limit": MEMORY, "threads": THREADS, "temp_directory": directory, "max_temp_directory_size": SPILLED}
    for setting, value in most.items():
        connection.execute(f"SET {setting} = '{value}'")


def _parquet_store(state: Path, directory: str) -> DuckDBFilesReader:
    """A Spark store, from its files."""
    from join_stage.duckdb import DuckDBFilesReader
    from mmqjp.tables.schema import SCHEMA

    return DuckDBFilesReader(SCHEMA, state, lambda connection: _limit(connection, directory))


def main(parent: int, kind: str, state: Path | None = None) -> None:
    """Answers questions until nobody asks any more. Standard input is a socket."""
    os.nice(NICE)
    child.leave_network()
    child.end_with_parent(parent)
    directory = tempfile.gettempdir()
    if kind == "spark":
        import mmqjp.tables.schema  # noqa: F401  # before files are out of reach
    _file_system({})
    child.lower(resource.RLIMIT_CORE, 0)
    child.lower(resource.RLIMIT_AS, ADDRESS_SPACE)
    child.lower(resource.RLIMIT_FSIZE, 1 << 30)
    if kind == "duckdb":
        child.lower(resource.RLIMIT_NOFILE, FILES)
    # Some code is imported when it is first needed, and DuckDB asks the system how much memory there is.
    code = {sys.prefix, sys.base_prefix, "/usr/lib", "/proc/self", "/sys/fs/cgroup", *filter(None, sys.path)}
    child.leave_files([*map(Path, code), *([] if state is None else [state])], [Path(directory)])
    with socket.socket(fileno=0) as pipe:
        _serve(pipe, state, directory)


def _serve(pipe: socket.socket, state: Path | None, directory: str) -> None:
    store: _HeldStore | DuckDBFilesReader | None = None
    while select.select([pipe], [], [], IDLE)[0]:
        head, descriptors, _, _ = socket.recv_fds(pipe, _HEAD.size, 2)
        if len(head) < _HEAD.size:
            return
        asked = json.loads(_received(pipe, _HEAD.unpack(head)[0]))
        used = resource.getrusage(resource.RUSAGE_SELF)
        child.lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + PROCESSOR_SECONDS)
        said: dict[str, Any] = {}
        cause: BaseException | None = None
        rows: bytes | memoryview = b""
        try:
            if (opens := asked["opens"]) is not None:
                if store is not None:
                    store.close()
                    store = None
                store = _HeldStore(opens, descriptors, directory) if state is None else _parquet_store(state, directory)
                said["opened"] = True
            assert store is not None
            bounds = stores.Bounds(asked["rows"], asked["size"])
            rows = packed(store.question(asked["sql"], bounds).answer())
        except stores.QuestionRefused as error:
            said |= {"error": "refused", "message": str(error)[:TEXT]}
        except MemoryError:
            said |= {"error": "refused", "message": "the question needs more memory than there is: narrow it down"}
        except RecursionError:
            said |= {"error": "refused", "message": "the question is nested too deeply"}
        except Exception as error:  # whoever asked must learn of any error
            said |= {"error": "store", "message": _line(error)}
            cause = error
            while cause.__context__ is not None:  # DuckDB's own words
                cause = cause.__context__
        # Some errors, such as no memory where it must be had, leave DuckDB unable to answer anything.
        is_fatal = "error" in said and store is not None and not _is_well(store)
        if is_fatal and said["error"] == "store":
            said |= {"error": "refused", "message": _ENDED.format(_line(cause))}
        text = json.dumps(said).encode()
        pipe.sendall(_HEAD.pack(len(text), len(rows)) + text)
        pipe.sendall(rows)
        if is_fatal:
            return


def _line(error: BaseException | None) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:TEXT]


def _is_well(store: _HeldStore | DuckDBFilesReader) -> bool:
    try:
        store.question("SELECT 1", stores.UNBOUNDED).answer()
    except Exception:  # whatever it is, the next question would meet it, too
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]) if sys.argv[3:] else None)
