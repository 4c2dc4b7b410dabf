import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pytest

from common.files import SHARED, make_inside, umask_of
from feeds.documents import Document
from feeds.fetch.fetcher import Capture, DropArchive
from feeds.fetch.state import FetchStore
from feeds.readers import Sidecar
from join_stage.store.protocol import Outdated, StoreError
from mmqjp.commands import formats as opening
from mmqjp.engine import Session
from mmqjp.service.commands import Client, CommandQueue
from mmqjp.state.engine_choice import OWNER_FILE, InUse, Ownership, ReadLock, is_held
from tests.processes import nursery
from tests.processes.programs import nobody
from tests.support.cli import mmqjp
from tests.support.service import PAIRS, Directory, Events, StopAfter, stream


def as_nobody(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs code as the user nobody, if this process is root. `sys.argv[1:]` has the arguments."""
    return nursery.run(nobody, code, *arguments)


def command_as_nobody(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return as_nobody("mmqjp.cli.main(sys.argv[1:])", *arguments)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A temporary directory that everybody may enter, unlike those of pytest."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        take_back(path)


def give_to_all(path: Path) -> None:
    """Lets everybody read a directory and everything in it. Only root may write."""
    for found in [path, *path.rglob("*")]:
        found.chmod(0o555 if found.is_dir() else 0o444)


def take_back(path: Path) -> None:
    for found in [path, *path.rglob("*")]:
        found.chmod(0o755 if found.is_dir() else 0o644)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in directory.rglob("*")}


def wanted(directory: Path, files: int, directories: int) -> dict[str, int]:
    """The modes of all that is in a directory, if files and directories have these."""
    return {name: directories if (directory / name).is_dir() else files for name in modes(directory)}


def use(place: Directory, engine: Any = "duckdb") -> None:
    place.drop("1.jsonl", range(3))
    place.run(PAIRS, engine=engine)
    place.ask("list")
    place.drop("2.jsonl", range(3, 5))
    with Session(engine, state=place.state) as opened:
        place.service(opened).run(None, StopAfter(10**9))
        log = place.state / "mmqjp.duckdb.wal"
        assert engine != "duckdb" or log.stat().st_mode & 0o777 in (0o600, 0o664)


@pytest.mark.parametrize(("mask", "own"), [(0o000, None), (0o022, 0o755)])
def test_a_state_on_duckdb_is_its_owners_and_a_directory_of_the_users_stays(tmp_path, mask, own):
    with umask(mask):
        place = Directory(tmp_path)
        if own is not None:
            place.state.mkdir(own)
        use(place)
        assert place.state.stat().st_mode & 0o777 == (own or 0o700)
        assert modes(place.state) == wanted(place.state, 0o600, 0o700)
        assert place.output.stat().st_mode & 0o777 == 0o666 & ~mask  # that is the user's
        for path in place.state.rglob("*"):  # as of an older version
            path.chmod(0o755 if path.is_dir() else 0o644)
        Session("duckdb", state=place.state).close()
    assert not [path for path in place.state.iterdir() if path.stat().st_mode & 0o077 and path.name != "spool"]
    place.ask("list")
    commands = place.state / "spool" / "commands"
    assert modes(commands) == wanted(commands, 0o600, 0o700) != {}


@pytest.mark.soak
def test_a_state_on_spark_is_its_owners(tmp_path, spark):
    with umask(0o022):
        place = Directory(tmp_path)
        use(place, spark)
        place.drop("3.jsonl", range(5, 6))
        make_inside(place.state, "checkpoint", "files")
        stream(place, spark)
    assert place.state.stat().st_mode & 0o777 == 0o700
    assert modes(place.state)["checkpoint"] == modes(place.state)["checkpoint/files"] == 0o700
    ours = {name: mode for name, mode in modes(place.state).items() if not name.startswith("checkpoint/")}
    assert ours.items() <= wanted(place.state, 0o600, 0o700).items()


def test_a_shared_state_is_for_whoever_the_umask_lets(tmp_path):
    place = Directory(tmp_path)
    with umask(0o002):
        Session("duckdb", state=place.state, shared=True).close()
        use(place)
    assert place.state.stat().st_mode & 0o777 == 0o775
    # Not for those who may only read: a lock is anybody's who may open it.
    assert modes(place.state) == wanted(place.state, 0o664, 0o775) | {OWNER_FILE: 0o660}


@pytest.mark.parametrize("command", ["run", "stream", "subscribe"])
def test_the_commands_that_make_a_state_can_share_it(tmp_path, command):
    place = Directory(tmp_path)
    place.drop("1.jsonl", range(3))
    queries = tmp_path / "q.xscl"
    queries.write_text(PAIRS)
    arguments: dict[str, list[str | Path]] = {
        "run": ["--queries", queries, "--documents", place.drops / "1.jsonl"],
        "stream": ["--source", place.drops, "--trigger", "available-now"],
        "subscribe": [queries],
    }
    for shared in (False, True):
        state = tmp_path / f"state-{shared}"
        options: list[str | Path] = ["--state", state, "--engine", "duckdb", *(["--shared"] if shared else [])]
        with umask(0o022):
            assert mmqjp(command, *arguments[command], *options).exit_code == 0
        assert state.stat().st_mode & 0o777 == (0o755 if shared else 0o700)
        assert (state / SHARED).exists() == shared
        assert (state / "mmqjp.duckdb").stat().st_mode & 0o777 == (0o644 if shared else 0o600)


def test_the_lock_cannot_be_taken_by_who_cannot_write():
    with open_directory() as directory, umask(0o022):
        state = directory / "state"
        Session("duckdb", state=state, shared=True).close()
        readable = as_nobody("print(len(open(sys.argv[1], 'rb').read()))", state / "mmqjp.duckdb")
        assert int(readable.stdout) > 0, readable.stderr
        lock = "import fcntl; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB); print(1)"
        taken = as_nobody(lock, state / OWNER_FILE)
        if os.getuid() == 0:  # else nobody is who owns it
            assert "PermissionError" in taken.stderr and not taken.stdout
        looked = command_as_nobody("list", "--state", state)
        assert looked.returncode == 0, looked.stderr
        Session("duckdb", state=state).close()


def test_the_state_of_a_fetch_is_its_owners_and_the_archive_as_its_directory(tmp_path):
    with umask(0o022):
        for name, mode in (("of-a-state", 0o700), ("of-a-crawl", 0o755)):
            directory = tmp_path / name
            directory.mkdir(mode)
            with FetchStore(directory / "fetch.sqlite", write=True) as store:
                store.save_mark("x")
                assert set(modes(directory).values()) == {0o600}  # the log of SQLite's, too
            archive = DropArchive(directory)
            archive.keep(Capture(Sidecar("http://f/", 0, sha256="ab" * 32), "f", (), b"<rss/>"))
            feed = directory / "f"
            assert modes(feed) == wanted(feed, 0o600 if mode == 0o700 else 0o644, mode) != {}
            assert (directory / "f").stat().st_mode & 0o777 == mode
    (tmp_path / "of-a-crawl" / "fetch.sqlite").chmod(0o644)  # of an older version
    FetchStore(tmp_path / "of-a-crawl" / "fetch.sqlite", write=True).close()
    assert (tmp_path / "of-a-crawl" / "fetch.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("shared", "inherited"), [(False, 0o077), (True, 0o022)])
def test_the_jvm_inherits_a_umask_that_keeps_its_files_private(shared, inherited, monkeypatch):
    seen: list[int] = []

    def start(*arguments: object) -> None:
        seen.append(os.umask(0o077))
        os.umask(seen[-1])

    monkeypatch.setattr(opening, "open_session", start)
    with umask(0o022):
        opening.start_session(None, shared=shared)
        after = os.umask(0o022)
        with umask_of(shared=False):
            pass
    assert seen == [inherited] and after == 0o022


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    state = tmp_path_factory.mktemp("whole") / "state"
    with Session("duckdb", state=state) as opened:
        opened.subscribe(PAIRS)
        opened.process([Document(f"d{n}", "<a>v</a>", time=n) for n in range(3)])
    return state


@pytest.fixture
def state(whole):
    with open_directory() as directory:
        yield shutil.copytree(whole, directory / "state")


def contents(state: Path) -> dict[str, bytes]:
    return {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*") if path.is_file()}


def process_and_end(state: Path) -> None:
    Session("duckdb", state=state).process([Document("d3", "<a>v</a>", time=3)])  # which is not closed


def test_a_state_that_one_may_only_read_is_looked_at_with_what_a_killed_process_left_in_the_log(state):
    assert nursery.run(process_and_end, state).returncode == 0
    assert (state / "mmqjp.duckdb.wal").stat().st_size
    (state.parent / "q.xscl").write_text(PAIRS)
    give_to_all(state)
    before = contents(state)
    with chdir(state.parent):
        for told, *arguments in (
            ('"name": "pairs"', "list", "--json"),
            ("pairs: active, since", "list", "pairs"),
            ('"outputs": 6', "status", "--json"),
            ('{"n": 6}\n', "query", "SELECT count(*) AS n FROM outputs"),
            ("pairs", "explain", "q.xscl"),
        ):
            result = command_as_nobody(*arguments, "--state", state)
            assert result.returncode == 0 and told in result.stdout, result.stderr
    assert contents(state) == before
    changing = command_as_nobody("pause", "pairs", "--state", state)
    assert changing.returncode == 1 and changing.stderr.count("\n") == 1 and "ermission denied" in changing.stderr
    take_back(state)
    assert mmqjp("query", "SELECT count(*) AS n FROM outputs", "--state", state).stdout == '{"n": 6}\n'


def test_an_engine_that_only_reads_changes_nothing(state):
    before = contents(state)
    with Session("duckdb", state=state, read_only=True) as engine, Session("duckdb", state=state, read_only=True):
        assert list(engine.queries()) == ["pairs"] and engine.state_bytes()
        assert [output.documents for output in engine.outputs()] == [
            ("d0", "d1"), ("d0", "d2"), ("d1", "d2")
        ]  # fmt: skip
        for change in (
            lambda: engine.process([Document("d9", "<a/>")]),
            lambda: engine.pause("pairs"),
            lambda: engine.subscribe("S/b PUBLISH b"),
        ):
            with pytest.raises(StoreError, match="read only"):
                change()
    assert contents(state) == before
    with pytest.raises(StoreError, match="holds no store"):
        Session("duckdb", state=state.parent, read_only=True)
    with pytest.raises(ValueError, match="name one"):
        Session("duckdb", read_only=True)


@pytest.mark.parametrize("lack", ["DROP TABLE offsets", "UPDATE settings SET value = '2' WHERE key = 'schema_version'"])
def test_a_store_of_an_older_format_is_brought_up_to_date_by_who_may_and_told_to_others(state, lack):
    with duckdb.connect(str(state / "mmqjp.duckdb")) as connection:
        connection.execute(lack)
    with pytest.raises(Outdated, match="older format"):
        Session("duckdb", state=state, read_only=True)
    give_to_all(state)
    result = command_as_nobody("list", "--state", state)
    assert result.returncode == 1 and "older format" in result.stderr and result.stderr.count("\n") == 1
    take_back(state)
    assert "pairs" in mmqjp("list", "--state", state).stdout
    Session("duckdb", state=state, read_only=True).close()


def test_a_service_that_starts_waits_for_those_who_look(state):
    first, second = ReadLock(state), ReadLock(state)
    waited: list[float] = []

    def leave(seconds: float) -> None:
        waited.append(seconds)
        (first if len(waited) == 1 else second).release()

    held = Ownership(state, sleep=leave)
    assert len(waited) == 2 and is_held(state)
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        ReadLock(state)
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        Ownership(state, sleep=leave)
    assert len(waited) == 2  # who holds it is not waited for
    held.release()
    looks = ReadLock(state)
    with pytest.raises(InUse, match="read by others"):
        Ownership(state, timeout=1, sleep=lambda seconds: None)
    assert not is_held(state)  # who asks whether it is held is in nobody's way either
    looks.release()
    Ownership(state).release()


def test_a_question_goes_to_the_service_that_starts_meanwhile(state):
    place = Directory(state.parent)
    service: list[Session] = []

    def look() -> Session:
        service.append(Session("duckdb", state=state))
        return Session("duckdb", state=state, read_only=True)

    def answer(seconds: float) -> None:
        CommandQueue(place.spool).apply(service[0], Events())

    client = Client(state, lambda: Session("duckdb", state=state), 600, sleep=answer, open_read_only=look)
    assert [row["name"] for row in client.ask("list", {})] == ["pairs"]
    service[0].close()


def test_a_look_comes_after_earlier_commands_and_needs_no_holder(state):
    place = Directory(state.parent)
    place.ask("pause", name="pairs")
    assert json.loads(mmqjp("list", "--state", state, "--json").stdout)["paused"] == "asked to"
    (state / OWNER_FILE).unlink()
    ReadLock(state).release()
    assert not is_held(state) and not (state / OWNER_FILE).exists()
