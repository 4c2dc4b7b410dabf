"""The watcher: which changes matter, what happens when the system tells nothing, and the real notices of the system."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest

from feeds.tail import Tail
from mmqjp.service.loop import (
    RETRY,
    FileWatcher,
    Stop,
    WatchedPath,
    Watcher,
    file_system_of,
    mounted_file_systems,
    watch,
)
from mmqjp.service.spool import Spool
from tests.support.service import Events, StopAfter

ADDED, MODIFIED, GONE = 1, 2, 3


class Told:
    """Notices that the test gives: each wait gets the next answer, or the error. It keeps what was watched."""

    def __init__(self) -> None:
        self.answers: list[set[tuple[int, str]] | str | Exception] = []
        self.watched: list[list[str]] = []
        self.refusal: Exception | None = None
        self.now, self.closed = 0.0, 0

    def open(self, directories: Sequence[str]) -> "Told":
        self.watched.append(list(directories))
        if self.refusal is not None:
            raise self.refusal
        return self

    def watch(self, debounce_ms: int, step_ms: int, timeout_ms: int, stop_event: Stop) -> set[tuple[int, str]] | str:
        if not self.answers:
            self.now += timeout_ms / 1000
            return "timeout"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def drops(tmp_path: Path) -> Path:
    (tmp_path / "drops" / "sub").mkdir(parents=True)
    return tmp_path / "drops"


def watcher_of(told: Told, *paths: Path, log: Events | None = None) -> FileWatcher:
    watched = [WatchedPath(tail.path, tail.is_wanted) for tail in map(Tail, paths)]
    return FileWatcher(watched, Events() if log is None else log, told.open, lambda: told.now)


def waits(watcher: FileWatcher, told: Told, *changes: tuple[int, Path]) -> bool:
    told.answers = [{(kind, str(path))} for kind, path in changes]
    return watcher.wait(0.5, Event())


def test_only_what_may_be_read_matters(told: Told, drops: Path):
    (drops / "all").symlink_to("/")  # which is not followed
    watcher = watcher_of(told, drops)
    assert told.watched == [sorted(map(str, [drops.parent, drops, drops / "sub"]))]
    assert waits(watcher, told, (ADDED, drops / "a.xml"))
    assert waits(watcher, told, (MODIFIED, drops / "sub" / "a.jsonl"))
    kept = [(ADDED, drops / name) for name in (".a.xml", "a.xml.part", "a.duckdb.wal", "b.txt")]
    assert not waits(watcher, told, *kept, (GONE, drops / "a.xml"), (ADDED, drops.parent / "lines.jsonl"))
    assert not told.answers and len(told.watched) == 1, "each was looked at, and none was a reason to watch anew"
    assert waits(watcher, told, *kept, (ADDED, drops / "a.xml"))


def test_what_is_beside_a_file_does_not_matter(told: Told, tmp_path: Path):
    log = tmp_path / "x.jsonl"
    log.touch()
    watcher = watcher_of(told, log)
    assert told.watched == [[str(tmp_path)]]
    assert waits(watcher, told, (MODIFIED, log))
    assert waits(watcher, told, (ADDED, tmp_path / "x.jsonl.1"))
    (tmp_path / "state").mkdir()
    assert not waits(watcher, told, (ADDED, tmp_path / "y.jsonl"), (ADDED, tmp_path / "state"))


def test_a_path_that_leads_elsewhere_is_noticed_without_being_told(told: Told, drops: Path, tmp_path: Path):
    (tmp_path / "one").mkdir()
    link = tmp_path / "one" / "link"
    link.symlink_to(drops)
    watcher = watcher_of(told, link)
    assert [str(link), str(link / "sub")] == told.watched[-1][1:]
    shutil.move(tmp_path / "one", tmp_path / "two")
    (tmp_path / "one").mkdir()
    link.symlink_to(tmp_path)
    assert not waits(watcher, told)
    told.now += 1
    assert waits(watcher, told) and str(link / "drops") in told.watched[-1]


@pytest.mark.parametrize("error", [OSError("no space"), RuntimeError("no inotify"), ValueError("not UTF-8")])
def test_where_nothing_is_told_the_watcher_waits_and_says_so(told: Told, drops: Path, error: Exception):
    told.refusal, log, stop = error, Events(), StopAfter(5)
    watcher = watcher_of(told, drops, log=log)
    assert not watcher.wait(3, stop) and not watcher.wait(3, stop)
    told.now = RETRY
    assert not watcher.wait(3, stop)
    assert log.named("polling") == [{"reason": str(error)}] and len(told.watched) == 2
    told.refusal, told.now = None, 2 * RETRY
    assert watcher.wait(3, stop), "something may have come meanwhile"
    assert log.named("watching") == [{"directories": 3}]


def test_notices_that_fail_later_are_a_reason_to_look_and_then_to_wait(told: Told, drops: Path):
    log = Events()
    watcher = watcher_of(told, drops, log=log)
    told.answers = [RuntimeError("limit reached (Error { kind: x })")]
    assert watcher.wait(3, Event()) and log.named("polling") == [{"reason": "limit reached"}]
    told.now = RETRY
    assert watcher.wait(3, StopAfter(0)) and [name for name, _ in log] == ["watching", "polling", "watching"]


def test_a_wait_ends_with_a_stop_and_with_a_second_signal(told: Told, drops: Path):
    watcher = watcher_of(told, drops)
    told.answers = ["stop"]
    assert not watcher.wait(3, Event())
    told.answers = ["signal"]
    with pytest.raises(KeyboardInterrupt):
        watcher.wait(3, Event())
    assert not Watcher().wait(3, StopAfter(0))


def test_too_many_directories_are_polled(told: Told, drops: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.service.loop.MOST_DIRECTORIES", 2)
    log = Events()
    watcher_of(told, drops, log=log)
    assert log == [("polling", {"reason": f"{drops} has more than 2 directories"})] and not told.watched


def test_the_system_tells_of_files_directories_and_commands(tmp_path: Path, drops: Path):
    """With the library itself. The waits are as short as those of the service, and end when something is told."""
    spool, log = Spool(tmp_path / "state"), Events()
    watcher = watch([Tail(drops)], spool, log)
    assert [name for name, _ in log] == ["watching"]

    def is_told() -> bool:
        """Whether something is told, within a minute. What else is told at once is passed over."""
        found = any(watcher.wait(0.1, Event()) for _ in range(600))
        return found and not all(watcher.wait(0.1, Event()) for _ in range(600))

    def made_anew() -> None:
        shutil.rmtree(drops)
        drops.mkdir()

    (tmp_path / "a").write_text("<a/>")
    for change in (
        lambda: (tmp_path / "a").rename(drops / "sub" / "a.xml"),
        lambda: (drops / "a.jsonl").write_text("{}\n"),
        lambda: (drops / "new").mkdir(),
        lambda: (drops / "new" / "b.xml").write_text("<b/>"),
        made_anew,
        lambda: (drops / "c.xml").write_text("<c/>"),
        lambda: spool.submit("list", {}),
    ):
        change()
        assert is_told()
    watcher.close()


def test_what_cannot_be_named_is_polled(drops: Path):
    log = Events()
    watcher = FileWatcher([WatchedPath(drops, Tail(drops).is_wanted)], log)
    Path(os.fsdecode(bytes(drops) + b"/\xff.xml")).touch()
    assert watcher.wait(60, Event())
    assert [name for name, _ in log] == ["watching", "polling"] and "decode" in str(log[1][1])


def test_file_systems_of_other_machines_are_known(tmp_path: Path):
    lines = ["1 0 8:1 / / rw - ext4 /dev/sda rw", r"7 1 0:3 / /my\040share rw shared:2 - nfs4 host:/x rw", "rubbish"]
    mounts = mounted_file_systems(lines)
    assert file_system_of(Path("/my share/a/b"), mounts) == "nfs4"
    assert file_system_of(Path("/my"), mounts) == "ext4" and file_system_of(Path("/my"), {}) == ""
