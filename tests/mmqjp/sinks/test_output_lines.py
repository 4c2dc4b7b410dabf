"""The file of output lines: each is there once, whatever becomes of the file, and nothing of others is cut off."""

import errno
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.process import json_line
from mmqjp.sinks import files
from mmqjp.sinks.definition import read_sink
from mmqjp.sinks.files import GrowingFile, Pipe, WholeFile, open_sink
from mmqjp.sinks.kinds import open_file_sink
from mmqjp.sinks.sink import Sink
from tests.support.faults import Killed, Point, armed, killed
from tests.support.sink_store import SinkStore


def outputs(*numbers: int) -> list[Output]:
    return [Output("q", n, n, (f"d{n}",), ("S",), {"a": 0}, "<match/>", f"i{n}", n) for n in numbers]


@given(
    st.text(), st.lists(st.text(), max_size=3), st.dictionaries(st.text(), st.integers(0) | st.text()), st.integers()
)
def test_a_line_is_what_json_writes(text: str, texts: list[str], nodes: dict[str, int | str], number: int):
    output = Output(text, number, number + 1, tuple(texts), tuple(reversed(texts)), nodes, text, text, number)
    assert output.to_line() == json_line(output.to_dict())
    assert json.loads(output.to_line()) == output.to_dict()


def nothing() -> Iterable[Output]:
    return ()


class Target:
    """A file of output lines, with what is noted of it."""

    def __init__(self, directory: Path) -> None:
        self.path, self.noted = directory / "out.jsonl", Position()
        self.told: list[str] = []

    def open(self) -> GrowingFile:
        return GrowingFile(self.path, self.noted, self.told.append)

    def take_up(self, *left: int) -> GrowingFile:
        """What a process does at its start, if outputs are left."""
        lines = self.open()
        if lines.prepare(lambda: outputs(*left)):
            self.noted = lines.position()
        return lines

    def write(self, *numbers: int, noted: bool = True) -> None:
        """A process that writes outputs, and notes it or is killed before."""
        lines = self.take_up(*numbers)
        lines.write(outputs(*numbers))
        if noted:
            self.noted = lines.position()
        lines.close()

    def numbers(self, path: Path | None = None) -> list[int]:
        return [json.loads(line)["t0"] for line in (path or self.path).read_text().splitlines()]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def test_what_was_not_noted_is_cut_off_and_comes_again(target: Target):
    target.write(1)
    target.write(2, 3, noted=False)
    with target.path.open("ab") as file:
        file.truncate(target.path.stat().st_size - 5)
    target.write(2, 3)
    assert target.numbers() == [1, 2, 3] and target.told == []


def test_a_file_is_noted_before_the_first_line_is_written(target: Target):
    target.path.write_text('{"t0": 0}\n')
    assert target.open().prepare(nothing)
    target.write(1, noted=False)
    target.write(1)
    assert target.numbers() == [0, 1]
    assert not target.open().prepare(nothing)


def test_what_others_wrote_stays(target: Target):
    target.write(1)
    with target.path.open("a") as file:
        file.write('{"t0": 7}\n{"t0": 8}')
    target.write(2, noted=False)
    target.write(2)
    assert target.numbers() == [1, 7, 8, 2]
    assert len(target.told) == 1 and "19 bytes from others" in target.told[0]


def test_what_others_wrote_behind_lines_that_were_not_noted_stays(target: Target):
    target.write(1)
    target.write(2, noted=False)
    with target.path.open("a") as file:
        file.write('{"t0": 7}\n')
    target.take_up(2)
    assert target.numbers() == [1, 2, 7]


def test_another_file_gets_what_is_left_and_the_first_one_loses_it(target: Target):
    target.write(1)
    target.write(2, noted=False)
    first, target.path = target.path, target.path.with_name("other.jsonl")
    target.write(2, 3, noted=False)
    target.write(2, 3)
    assert (target.numbers(first), target.numbers()) == ([1], [2, 3])
    target.path = first
    target.write(4)
    assert target.numbers() == [1, 4] and target.told == []


def test_standard_output_takes_over_from_a_file(target: Target, tmp_path: Path):
    target.write(1)
    target.write(2, noted=False)
    pipe = Pipe(Path(os.devnull), target.noted)
    assert pipe.prepare(lambda: outputs(2)) and not pipe.prepare(nothing)
    assert target.numbers() == [1]
    with target.path.open("a") as file:
        file.write('{"t0": 7}\n')
    target.noted = pipe.position()
    target.write(3)
    assert target.numbers() == [1, 7, 3]
    pipe.close()


@pytest.mark.parametrize("length", [0, 1])
def test_a_file_that_was_cut_is_appended_to(target: Target, length: int):
    target.write(1, 2)
    lines = target.path.read_bytes().splitlines(keepends=True)
    target.path.write_bytes(b"".join(lines[:length]))
    for noted in (False, True):
        target.write(3, 4, 5, noted=noted)
    assert target.numbers() == [*[1, 2][:length], 3, 4, 5]
    assert len(target.told) == 1 and f"was cut to {len(b''.join(lines[:length]))} of" in target.told[0]


def test_a_file_that_was_replaced_is_appended_to(target: Target, tmp_path: Path):
    target.write(1)
    (tmp_path / "mine").write_text('{"t0": 10}\n' * 40)
    (tmp_path / "mine").replace(target.path)
    for noted in (False, True):
        target.write(2, noted=noted)
    assert target.numbers() == [10] * 40 + [2]
    assert len(target.told) == 1 and "another file" in target.told[0]


@pytest.mark.parametrize("removed", [False, True])
def test_lines_go_on_in_a_new_file_when_the_old_one_is_moved_away(target: Target, removed: bool):
    lines = target.take_up()
    lines.write(outputs(1))
    old = target.path.with_name("out.jsonl.1")
    target.path.replace(old)
    if removed:
        old.unlink()
    assert lines.prepare(nothing) and not lines.prepare(nothing)
    target.noted = lines.position()
    lines.write(outputs(2))  # killed
    target.write(2)
    assert target.numbers() == [2] and (removed or target.numbers(old) == [1])
    assert len(target.told) == 1 and "was gone" in target.told[0]


def test_a_file_that_was_moved_away_after_a_kill_loses_what_goes_to_the_new_one(target: Target):
    target.write(1)
    target.write(2, noted=False)
    old = target.path.with_name("out.jsonl.1")
    target.path.replace(old)
    target.open().prepare(lambda: outputs(2))  # killed before that is noted
    target.write(2, noted=False)
    target.write(2)
    assert (target.numbers(old), target.numbers()) == ([1], [2])


def test_a_file_of_others_that_got_the_number_of_a_removed_one_is_not_touched(target: Target, tmp_path: Path):
    target.write(noted=True)
    place = target.noted.details
    target.path.unlink()
    (tmp_path / "mine").write_bytes(b"my own data")
    target.noted = replace(target.noted, details={**place, "inode": (tmp_path / "mine").stat().st_ino})
    target.write(1)
    assert (tmp_path / "mine").read_bytes() == b"my own data" and target.numbers() == [1]


def test_where_no_new_file_can_be_made_the_moved_one_goes_on(target: Target, monkeypatch: pytest.MonkeyPatch):
    lines = target.take_up()
    old = target.path.with_name("out.jsonl.1")
    target.path.replace(old)

    def denied(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target.path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", denied)
        assert not lines.prepare(nothing)
        lines.write(outputs(1))
        old_bytes = old.read_bytes()
        old.unlink()
        with pytest.raises(PermissionError):
            lines.prepare(nothing)
    assert old_bytes.count(b"\n") == 1
    assert lines.prepare(nothing)


@pytest.mark.parametrize("room", [0, 10, 100])
def test_a_line_that_is_not_written_whole_is_withdrawn(target: Target, room: int, monkeypatch: pytest.MonkeyPatch):
    target.write(1)
    write = os.write

    def full(handle: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(handle, data[:room])
        room -= written
        return written

    lines = target.take_up()
    before = target.path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space") as raised:
            lines.write(outputs(2, 3))
    assert raised.value.filename == str(target.path)
    assert target.path.read_bytes() == before and lines.position() == target.noted
    lines.write(outputs(2, 3))
    assert target.numbers() == [1, 2, 3]


def test_notes_of_older_versions_have_no_inode(target: Target):
    target.write(1)
    place = target.noted.details
    target.noted = replace(target.noted, details={"file": place["file"], "bytes": place["bytes"]})
    target.write(2, noted=False)
    target.write(2)
    assert target.numbers() == [1, 2] and target.told == []


def test_long_lines_go_out_in_parts(target: Target):
    long = [Output("q", n, n, ("d",), ("S",), {"a": 0}, "x" * 300_000) for n in range(9)]
    lines = target.take_up()
    assert lines.write(iter(long)) == 9
    assert target.numbers() == list(range(9)) and lines.position().details["bytes"] == target.path.stat().st_size


def test_a_whole_file_is_there_when_all_is_written(target: Target):
    def broken() -> Iterable[Output]:
        yield from outputs(1)
        raise ZeroDivisionError

    target.path.write_text("old")
    lines = WholeFile(target.path)
    with pytest.raises(ZeroDivisionError):
        lines.write(broken())
    assert [path.name for path in target.path.parent.iterdir()] == ["out.jsonl"] and target.path.read_text() == "old"
    assert lines.write(outputs(1, 2)) == 2
    assert target.numbers() == [1, 2]


def test_what_is_no_regular_file_is_written_to(tmp_path: Path):
    assert isinstance(open_sink(Path(os.devnull), Position()), Pipe)
    assert isinstance(open_sink(tmp_path / "new", Position(), growing=False), WholeFile)
    with pytest.raises(FileNotFoundError):
        GrowingFile(tmp_path / "no" / "out", Position()).prepare(nothing)


# ------------------------------------------------------------ the kind `jsonl`


class Store(SinkStore[Sink]):
    """A store with a sink of the kind `jsonl`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.definition = read_sink("x", {"kind": "jsonl", "path": "out.jsonl"}, path, file="x.toml")
        self.path = path / "out.jsonl"

    def opened(self, position: Position) -> Sink:
        return open_file_sink(self.definition, position, self.warnings.append)

    def seqs(self) -> list[int]:
        return [json.loads(line)["seq"] for line in self.path.read_text().splitlines()]


SEAMS: list[Point] = [
    (GrowingFile, "prepare"),
    (GrowingFile, "write"),
    (GrowingFile, "_append"),
    (GrowingFile, "_put"),
    (files, "_cut_back"),
    (os, "write"),
    (os, "fsync"),
    (Store, "note"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", SEAMS, ids=[point[1] for point in SEAMS])
def test_a_kill_anywhere_loses_nothing_and_repeats_nothing(tmp_path, point, after, monkeypatch):
    monkeypatch.setattr(GrowingFile, "_truncate", lambda self, length: None)  # which a killed process does not do
    strikes = 0
    for calls in range(1, 8):
        (tmp_path / str(calls)).mkdir()
        store = Store(tmp_path / str(calls))
        for count in (7, 6, 5):
            store.sink = None
            store.commit(count, wanted=lambda seq: seq % 3 != 2)
            try:
                with armed(point, killed, calls, after=after):
                    store.deliver()
            except Killed:
                strikes += 1
        store.sink = None
        store.deliver()
        assert store.seqs() == [seq for seq in range(18) if seq % 3 != 2]
    assert strikes or (point[1], after) == ("_cut_back", True)  # it seldom has something to cut


def test_what_is_asked_for_again_is_appended(tmp_path):
    store = Store(tmp_path)
    store.commit(3)
    store.deliver()
    store.setting = Position(0, Position.from_setting(store.setting).details).to_setting()
    store.open()
    store.deliver()
    assert store.seqs() == [0, 1, 2, 1, 2]
