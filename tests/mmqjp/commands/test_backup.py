"""Backups are whole or absent, and so is what is restored of them; a service goes on meanwhile, and sinks after it."""

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pyarrow.parquet as pq
import pytest

from feeds.fetch.state import STATE_FILE, AddedFeed, ChangesOf, FeedChange, FetchStore, change_feeds
from join_stage.store import duckdb
from join_stage.store.duckdb import DuckDBStore
from mmqjp.commands import backup as backups
from mmqjp.commands.backup import BackupError, back_up, copy_file, read_backup, restore_state
from mmqjp.commands.check_store import StoreCheck
from mmqjp.engine import Session
from mmqjp.service.drops import fetch_directory, known_feeds, state_file
from mmqjp.tables.schema import SCHEMA
from mmqjp.web.site import token_of
from tests.generate.seeds import at_length
from tests.processes import nursery
from tests.processes.programs import command
from tests.support.cli import mmqjp, printed, refused
from tests.support.service import PAIRS, Directory, events_of
from tests.support.stores import as_files


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    """A state with documents, matches, feeds, fetched files, secrets and a file of a sink."""
    place = Directory(tmp_path_factory.mktemp("place"))
    place.drop("1.jsonl", range(6))
    place.run(PAIRS)
    fed = fetch_directory(place.state)
    change_feeds(fed / STATE_FILE, FeedChange(add=(AddedFeed("https://a.example/feed", "A"),)))
    (fed / "a-example").mkdir()
    (fed / "a-example" / "20260102T150405Z-0.xml").write_text("<rss/>")
    (fed / "a-example" / ".20260102T150406Z-0.xml").write_text("<rs")
    with FetchStore(fed / STATE_FILE, write=True):  # a fetch, which has not come to this change yet
        ChangesOf(fed / STATE_FILE).ask(FeedChange(add=(AddedFeed("https://b.example/feed", "B"),)))
    token_of(place.state)
    (place.state / "sinks").mkdir()
    (place.state / "sinks" / "mine.jsonl").write_text("{}\n")
    place.ask("unsubscribe", name="pairs")
    return place


def outputs(state: Path) -> list[dict[str, object]]:
    with Session("duckdb", state=state, read_only=True) as engine:
        return [output.to_dict() for output in engine.outputs()]


def test_a_state_comes_back_whole_under_another_path(place, tmp_path):
    said = printed("backup", tmp_path / "monday", "--state", place.state)
    manifest = read_backup(tmp_path / "monday")
    assert said.startswith(f"{tmp_path / 'monday'}: {len(manifest.files)} files, ") and said.endswith(" MiB\n")
    assert set(manifest.files) == {
        "committed", "mmqjp.duckdb", "drops/fetch.sqlite", "drops/a-example/20260102T150405Z-0.xml", "secrets/token",
        "sinks/mine.jsonl", *(name for name in manifest.files if "/.fetch.sqlite.changes/" in name),
    }  # fmt: skip
    restored = tmp_path / "elsewhere" / "state"
    printed("restore", tmp_path / "monday", "--state", restored)
    assert outputs(restored) == outputs(place.state) != []
    assert list(StoreCheck(restored).faults()) == []
    assert token_of(restored) == token_of(place.state)
    assert [feed.title for feed in known_feeds(state_file(restored))] == ["A"]
    with FetchStore(state_file(restored), write=True) as store:
        ChangesOf(state_file(restored)).take(store)
        assert [feed.title for feed in store.feeds()] == ["A", "B"], "what was asked for is still done"
    assert (restored / "secrets" / "token").stat().st_mode & 0o777 == 0o600
    assert restored.stat().st_mode & 0o777 == (tmp_path / "monday").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_secrets_may_be_left_out_and_shared_states_stay_shared(place, tmp_path):
    copytree(place.state, tmp_path / "state")
    (tmp_path / "state" / "shared").touch()
    assert "without its secrets" in printed("backup", tmp_path / "b", "--state", tmp_path / "state", "--no-secrets")
    assert not any(name.startswith("secrets") for name in read_backup(tmp_path / "b").files)
    restore_state(tmp_path / "b", tmp_path / "restored")
    assert (tmp_path / "restored").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "restored" / "mmqjp.duckdb").stat().st_mode & 0o777 == 0o644


@pytest.fixture(scope="module")
def backup(place, tmp_path_factory):
    back_up(place.state, made := tmp_path_factory.mktemp("backups") / "monday")
    return made


def _damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _with(**changed: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = json.loads(path.read_text()) | changed
        content.pop("digest")
        path.write_text(json.dumps(content | {"digest": backups._digest(content)}))

    return change


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a changed byte": ("files/mmqjp.duckdb", _damaged, "mmqjp.duckdb differs from the file that was backed up"),
    "a cut file": ("files/secrets/token", lambda path: path.write_text("x"), "token differs from the file"),
    "a file that is gone": ("files/drops/fetch.sqlite", Path.unlink, "fetch.sqlite is missing"),
    "no manifest": ("backup.json", Path.unlink, "is not a backup"),
    "an empty manifest": ("backup.json", lambda path: path.write_text(""), "not a manifest of a backup"),
    "another manifest": ("backup.json", lambda path: path.write_text('{"format": 1}'), "not a manifest of a backup"),
    "a changed manifest": ("backup.json", lambda path: path.write_text(path.read_text().replace("true", "false")),
                           "is damaged"),
    "a later format": ("backup.json", _with(format=2, mmqjp="9.1"), "was made by mmqjp 9.1: install that version"),
    "a path outside": ("backup.json", _with(files={"../x": {"size": 0, "sha256": ""}}), "'../x', which cannot be"),
    "an absolute path": ("backup.json", _with(files={"/x": {"size": 0, "sha256": ""}}), "'/x', which cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_backup_is_refused_and_nothing_is_there(backup, tmp_path, name):
    file, damage, told = DAMAGES[name]
    copytree(backup, tmp_path / "b")
    damage(tmp_path / "b" / file)
    assert told in refused("restore", tmp_path / "b", "--state", tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_what_is_there_is_never_replaced(backup, place, tmp_path):
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine").write_text("x")
    (tmp_path / "file").touch()
    assert "is not empty: name another directory" in refused("restore", backup, "--state", used)
    for target in (used, tmp_path / "file"):
        assert "is not empty: name another directory" in refused("backup", target, "--state", place.state)
    assert (used / "mine").read_text() == "x"
    assert "is inside the state" in refused("backup", place.state / "b", "--state", place.state)
    assert "there is no store in" in refused("backup", tmp_path / "b", "--state", used)
    empty = tmp_path / "empty"
    empty.mkdir()
    restore_state(backup, empty)
    assert outputs(empty) == outputs(place.state)
    with backups.whole_directory(tmp_path / "b"), pytest.raises(BackupError, match="another process is writing"):
        back_up(place.state, tmp_path / "b")


SEAMS = ("backup.copy_file", "os.fsync", "backup._rename")


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("what", ["backup", "restore"])
def test_a_kill_leaves_all_or_nothing(place, backup, tmp_path, what, seam):
    target = tmp_path / "target"
    given = {
        "backup": ("backup", target, "--state", place.state), "restore": ("restore", backup, "--state", target),
    }[what]  # fmt: skip
    wanted, before = outputs(place.state), sorted(backup.rglob("*"))
    calls = range(1, 100) if at_length() else (1, 3, 5)
    for number in calls:
        ends = 0
        for when in ("before", "after"):
            status = nursery.run(command, *given, kill=(f"{when} {seam}", number)).returncode
            assert status in (0, -signal.SIGKILL)
            ends += status == 0
            if target.exists():
                if what == "backup":
                    restore_state(target, tmp_path / "of it")
                found = tmp_path / "of it" if what == "backup" else target
                assert outputs(found) == wanted
                for path in (target, tmp_path / "of it"):
                    if path.exists():
                        path.rename(tmp_path / f"{path.name}-{number}-{when}")
        if ends == 2:
            break
    assert nursery.run(command, *given).returncode == 0, "what a killed process left is in nobody's way"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert sorted(backup.rglob("*")) == before


def test_a_backup_beside_a_service_is_of_one_commit(tmp_path, monkeypatch):
    """While each file is copied, the service commits more."""
    place, copy, numbers = Directory(tmp_path), copy_file, iter(range(100))
    place.drop("0.jsonl", range(4), "0")
    place.run(PAIRS)
    service = place.start("--output", place.output)
    batches = events_of(service, "batch")
    place.drop("begun.jsonl", range(10, 12), "begun")
    next(batches)

    def copy_slowly(*arguments):
        copied = copy(*arguments)
        n = next(numbers)
        place.drop(f"new-{n}.jsonl", range(100 + 10 * n, 104 + 10 * n), f"new {n}")
        next(batches)
        return copied

    monkeypatch.setattr(backups, "copy_file", copy_slowly)
    back_up(place.state, tmp_path / "b")
    service.send_signal(signal.SIGTERM)
    assert service.wait(60) == 0
    monkeypatch.undo()
    restore_state(tmp_path / "b", tmp_path / "restored")
    assert list(StoreCheck(tmp_path / "restored").faults()) == []
    found, everything = outputs(tmp_path / "restored"), outputs(place.state)
    assert 0 < len(found) < len(everything) and found == everything[: len(found)]
    # The copy goes on from there: it reads what it has not, and tells nothing twice.
    output = tmp_path / "other.jsonl"
    options = ("--source", place.drops, "--engine", "duckdb", "--trigger", "available-now", "--output", output)
    assert mmqjp("stream", *options, "--state", tmp_path / "restored").exit_code == 0
    lines = (line for file in (place.output, output) for line in file.read_text().splitlines())
    told = Counter(json.loads(line)["id"] for line in lines)
    assert len(outputs(tmp_path / "restored")) == len(everything)
    assert {id for id, count in told.items() if count > 1}.isdisjoint({one["id"] for one in found})


def test_files_that_a_checkpoint_changed_are_copied_again(place, tmp_path):
    copytree(place.state, tmp_path / "state")
    target, files = tmp_path / "copy", list[str]()
    store = DuckDBStore(SCHEMA, tmp_path / "state")

    def copy(name, most=None):
        files.append(name)
        copy_file(tmp_path / "state" / name, target / name, most)
        if files.count("mmqjp.duckdb") == 1 and name == "mmqjp.duckdb":
            store._connection.execute("CREATE OR REPLACE TABLE more AS SELECT range FROM range(100000)")
            store._connection.execute("CHECKPOINT")

    assert not duckdb.copy_files(tmp_path / "state", target, copy)
    assert duckdb.copy_files(tmp_path / "state", target, copy)
    store.close()
    copied = DuckDBStore(SCHEMA, target)
    assert copied.select("SELECT count(*) AS rows FROM more")["rows"].to_pylist() == [100_000]
    copied.close()


def test_a_store_on_spark_is_copied_by_its_manifest(place, tmp_path):
    as_files(place.state, tmp_path / "state")
    (tmp_path / "state" / "checkpoint" / "files" / "commits").mkdir(parents=True)
    (tmp_path / "state" / "checkpoint" / "files" / "commits" / "0").write_text("v1")
    (tmp_path / "state" / "documents" / "9-9-killed.parquet").write_text("half")
    back_up(tmp_path / "state", tmp_path / "b")
    names = read_backup(tmp_path / "b").files
    assert names.keys() > {"manifests/1.json", "committed", "checkpoint/files/commits/0"}
    assert not any("killed" in name for name in names)
    restore_state(tmp_path / "b", tmp_path / "restored")
    assert outputs(tmp_path / "restored") == outputs(place.state)
    assert list(StoreCheck(tmp_path / "restored").faults()) == []


SINKS = """
[sinks.lines]
kind = "jsonl"
path = "{outside}/lines.jsonl"
[sinks.rows]
kind = "parquet"
path = "{outside}/rows"
rows = 2
[sinks.program]
kind = "command"
command = ["sh", "-c", "cat >> {outside}/program; echo >> {outside}/program"]
"""


def test_sinks_go_on_where_they_were_and_may_be_paused(tmp_path):
    place, outside = Directory(tmp_path), tmp_path / "outside"
    outside.mkdir()
    (config := tmp_path / "mmqjp.toml").write_text(SINKS.format(outside=outside))

    def run(state: Path, output: Path) -> None:
        given = ("--source", place.drops, "--engine", "duckdb", "--trigger", "available-now", "--output", output)
        done = mmqjp("--config", config, "stream", *given, "--state", state)
        assert done.exit_code == 0, done.output

    def ids_in(path: Path) -> list[str]:
        return [json.loads(line)["id"] for line in path.read_text().splitlines()]

    place.drop("1.jsonl", range(5))
    place.run(PAIRS)
    assert (
        mmqjp(
            "sinks", "add", "own", "kind=jsonl", "path=own.jsonl", "--from", "start", "--state", place.state
        ).exit_code
        == 0
    )
    first = len(outputs(place.state))
    place.drop("2.jsonl", range(5, 8))
    run(place.state, place.output)
    back_up(place.state, tmp_path / "b")
    for name, paused in (("beside", True), ("later", False)):
        restore_state(tmp_path / "b", tmp_path / name, paused=paused)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "drops" not in path.parts}
    place.drop("3.jsonl", range(8, 10))

    run(tmp_path / "beside", tmp_path / "beside.jsonl")
    kept = {path for path in before if not path.is_relative_to(tmp_path / "beside")}
    assert all(path.read_bytes() == before[path] for path in kept), "it delivers nothing, and leaves the original alone"
    assert (tmp_path / "beside" / "sinks" / "own.jsonl").read_bytes() == before[place.state / "sinks" / "own.jsonl"]

    place.state.rename(tmp_path / "lost")
    run(tmp_path / "later", place.output)
    every = [str(output["id"]) for output in outputs(tmp_path / "later")]
    assert len(every) == 45 > first
    assert ids_in(place.output) == ids_in(tmp_path / "later" / "sinks" / "own.jsonl") == every
    assert ids_in(outside / "lines.jsonl") == every[first:]
    rows = pq.read_table(outside / "rows").sort_by("seq")["id"].to_pylist()
    assert rows == every[first : first + len(rows)] and len(rows) > 1
    told = json.JSONDecoder()
    sent, text = list[str](), (outside / "program").read_text().strip()
    while text:
        message, end = told.raw_decode(text)
        sent += [output["id"] for output in message["outputs"]]
        text = text[end:].strip()
    assert sent == every[first:]
