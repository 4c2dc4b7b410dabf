"""The kind `jsonl`: output lines of the wanted queries, each once, whatever ends the process or fills the disk."""

import json
import os
from pathlib import Path

import pytest

import mmqjp.sinks.files as file_checkpoint
from mmqjp.answers.outbox import Position
from mmqjp.sinks.definition import read_sink
from mmqjp.sinks.files import GrowingFile
from mmqjp.sinks.kinds import open_file_sink
from mmqjp.sinks.sink import Sink
from tests.support.faults import Killed, Point, armed, killed
from tests.support.sink_store import SinkStore


class Store(SinkStore[Sink]):
    """A store with a sink of the kind `jsonl`."""

    def __init__(self, path: Path, *, live: bool = False) -> None:
        super().__init__()
        table, file = {"kind": "jsonl", "path": "out.jsonl"}, "" if live else "x.toml"
        self.definition = read_sink("x", table, path, file=file)
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
    (file_checkpoint, "_cut_back"),
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


def test_a_live_one_lies_in_a_directory_of_the_state(tmp_path):
    store = Store(tmp_path / "sinks", live=True)
    store.commit(3)
    store.deliver()
    assert store.seqs() == [0, 1, 2] and store.path == tmp_path / "sinks" / "out.jsonl"


def test_what_is_asked_for_again_is_appended(tmp_path):
    store = Store(tmp_path)
    store.commit(3)
    store.deliver()
    store.setting = Position(0, Position.from_setting(store.setting).details).to_setting()
    store.open()
    store.deliver()
    assert store.seqs() == [0, 1, 2, 1, 2]


def test_what_others_have_appended_stays(tmp_path):
    store = Store(tmp_path)
    store.commit(2)
    store.deliver()
    with store.path.open("a") as file:
        file.write('{"seq": 100}\n')
    store.commit(2)
    store.deliver()
    assert store.seqs() == [0, 1, 100, 2, 3] and "bytes from others" in store.warnings[0]
