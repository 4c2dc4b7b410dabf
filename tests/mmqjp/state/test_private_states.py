"""A state is its owner's, whatever the umask, unless it is shared; what the user asked to be written is the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from common.files import SHARED, make_inside, umask_of
from feeds.fetch.archive import Capture, DropArchive
from feeds.fetch.state import FetchStore
from mmqjp.commands import formats as opening
from mmqjp.engine import Session
from mmqjp.state.choice import OWNER_FILE
from tests.support.cli import mmqjp
from tests.support.service import PAIRS, Directory, StopAfter, stream
from tests.support.unprivileged import as_nobody, command_as_nobody, open_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK = "import fcntl; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB); print('taken')"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """The modes of all below a directory, without its own."""
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in directory.rglob("*")}


def are(directory: Path, files: int, directories: int) -> None:
    """Checks the modes of all below a directory."""
    found = modes(directory)
    wanted = {name: directories if (directory / name).is_dir() else files for name in found}
    assert found == wanted and found


def use(place: Directory, engine: Any = "duckdb") -> None:
    """Has a service work on a state, and somebody ask it."""
    place.drop("1.jsonl", range(3))
    place.run(PAIRS, engine=engine)
    place.ask("list")
    place.drop("2.jsonl", range(3, 5))
    with Session(engine, state=place.state) as opened:
        place.service(opened).run(None, StopAfter(10**9))
        log = place.state / "mmqjp.duckdb.wal"
        assert engine != "duckdb" or log.stat().st_mode & 0o777 in (0o600, 0o664)


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_a_state_on_duckdb_is_its_owners(tmp_path: Path, mask: int):
    with umask(mask):
        place = Directory(tmp_path)
        use(place)
    assert place.state.stat().st_mode & 0o777 == 0o700
    are(place.state, 0o600, 0o700)
    assert place.output.stat().st_mode & 0o777 == 0o666 & ~mask  # that is the user's


@pytest.mark.soak
def test_a_state_on_spark_is_its_owners(tmp_path: Path, spark: SparkSession):
    with umask(0o022):
        place = Directory(tmp_path)
        use(place, spark)
        place.drop("3.jsonl", range(5, 6))
        make_inside(place.state, "checkpoint", "files")
        stream(place, spark)
    assert place.state.stat().st_mode & 0o777 == 0o700
    assert modes(place.state)["checkpoint"] == modes(place.state)["checkpoint/files"] == 0o700
    ours = {name: mode for name, mode in modes(place.state).items() if not name.startswith("checkpoint/")}
    assert ours == {name: 0o700 if (place.state / name).is_dir() else 0o600 for name in ours}


def test_a_directory_of_the_users_stays_and_what_is_made_in_it_is_the_owners(tmp_path: Path):
    place = Directory(tmp_path)
    place.state.mkdir(0o755)
    with umask(0o022):
        use(place)
    assert place.state.stat().st_mode & 0o777 == 0o755
    are(place.state, 0o600, 0o700)


def test_a_state_of_an_older_version_becomes_its_owners(tmp_path: Path):
    place = Directory(tmp_path)
    use(place)
    for path in place.state.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with umask(0o022):
        Session("duckdb", state=place.state).close()
    assert [path for path in place.state.iterdir() if path.stat().st_mode & 0o077 and path.name != "spool"] == []
    place.ask("list")
    are(place.state / "spool" / "commands", 0o600, 0o700)


def test_a_shared_state_is_for_whoever_the_umask_lets(tmp_path: Path):
    place = Directory(tmp_path)
    with umask(0o002):
        Session("duckdb", state=place.state, shared=True).close()
        use(place)
    assert place.state.stat().st_mode & 0o777 == 0o775
    found = modes(place.state)
    assert found.pop(OWNER_FILE) == 0o660  # not for those who may only read: a lock is anybody's who may open it
    assert found == {name: 0o775 if (place.state / name).is_dir() else 0o664 for name in found}


@pytest.mark.parametrize("command", ["run", "stream", "subscribe"])
def test_the_commands_that_make_a_state_can_share_it(tmp_path: Path, command: str):
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
        taken = as_nobody(LOCK, state / OWNER_FILE)
        if os.getuid() == 0:  # else nobody is who owns it
            assert "PermissionError" in taken.stderr and not taken.stdout
        looked = command_as_nobody("list", "--state", state)
        assert looked.returncode == 0, looked.stderr
        Session("duckdb", state=state).close()


def test_the_state_of_a_fetch_is_its_owners_and_the_archive_as_its_directory(tmp_path: Path):
    with umask(0o022):
        for name, mode in (("of-a-state", 0o700), ("of-a-crawl", 0o755)):
            directory = tmp_path / name
            directory.mkdir(mode)
            with FetchStore(directory / "fetch.sqlite", write=True) as store:
                store.save_mark("x")
                assert set(modes(directory).values()) == {0o600}  # the log of SQLite's, too
            archive = DropArchive(directory)
            archive.keep(Capture("http://f/", "f", "http://f/", 200, (), 0, "ab" * 32, b"<rss/>"))
            are(directory / "f", 0o600 if mode == 0o700 else 0o644, mode)
            assert (directory / "f").stat().st_mode & 0o777 == mode
    (tmp_path / "of-a-crawl" / "fetch.sqlite").chmod(0o644)  # of an older version
    FetchStore(tmp_path / "of-a-crawl" / "fetch.sqlite", write=True).close()
    assert (tmp_path / "of-a-crawl" / "fetch.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("shared", "inherited"), [(False, 0o077), (True, 0o022)])
def test_the_jvm_inherits_a_umask_that_keeps_its_files_private(
    shared: bool, inherited: int, monkeypatch: pytest.MonkeyPatch
):
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
