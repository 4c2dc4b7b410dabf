import json
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest

from common.files import write_mark
from join_stage.protocol import FLAT_STORE
from join_stage.signature import join
from join_stage.store.protocol import COMMITTED, DUCKDB_FILE, RUNS, SPARK_MANIFESTS, Outdated
from join_stage.store.spark.manifests import Manifest, read_manifest, write_manifest
from mmqjp.commands.check_store import QUARANTINE, StoreCheck
from mmqjp.engine import Session
from mmqjp.tables.schema import SCHEMA
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.mmqjp.state.test_damage import BEFORE, QUERIES, batch
from tests.support.cli import mmqjp, refused
from tests.support.damage import damaged, lost_or_swapped
from tests.support.delivery import mark_delivered
from tests.support.stores import as_files


def checked(state: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    result = mmqjp("check-store", state, "--json", *options)
    assert result.stderr == ""
    return result.exit_code, json.loads(result.stdout)["faults"]


def outputs(state: Path) -> list[tuple[Any, ...]]:
    with Session(state=state, read_only=True) as engine:
        return [(o.seq, o.query, o.documents, o.xml) for o in engine.outputs()]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with runs of postings on DuckDB, `closed` and `killed`, and one of files, as on Spark."""
    place = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "MOST_IN_MEMORY", 0)
        with Session("duckdb", state=place / "closed") as engine:
            engine.subscribe(QUERIES)
            for number in range(BEFORE):
                engine.process(batch(number))
            shutil.copytree(place / "closed", place / "killed")
    as_files(place / "closed", place / "files", batches=3)
    shutil.copytree(place / "closed" / RUNS, place / "files" / RUNS)
    return place


@pytest.fixture
def state(stores: Path, tmp_path: Path) -> Path:
    """A copy of a whole store."""
    return Path(shutil.copytree(stores / "closed", tmp_path / "copy"))


@pytest.fixture(scope="module")
def right(stores: Path) -> list[tuple[Any, ...]]:
    return outputs(stores / "closed")


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_nothing_is_wrong_after_any_life(seed, tmp_path):
    """With queries that come and go, documents that are evicted and dropped, and outputs that are delivered."""
    rng = Random(seed)
    script, documents = random_case(seed, 8, 24)
    with Session("duckdb", state=tmp_path, lateness=rng.choice([None, 10**6])) as engine:
        engine.ensure(script)
        for at in range(0, len(documents), 3):
            engine.process(documents[at : at + 3])
            names = sorted(engine.queries())
            if rng.random() < 0.2 and len(names) > 1:
                rng.choice([engine.unsubscribe, engine.pause])(rng.choice(names))
            if rng.random() < 0.2:
                mark_delivered(engine)
                engine.prune(rng.choice([None, 0, 5 * 10**6]), keep_ids=0)
    check = StoreCheck(tmp_path)
    assert list(check.faults()) == [] and check.rows


def harm(path: Path, at: int = 200) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_postings_are_built_anew(stores, right, tmp_path):
    for store in ("closed", "files"):
        state = shutil.copytree(stores / store, tmp_path / store)
        run = next((state / RUNS).iterdir())
        harm(run)
        status, (fault,) = checked(state)
        assert (status, fault["place"], fault["mended"]) == (1, f"{RUNS}/{run.name}", False)
        assert fault["what"].startswith(f"{run} is damaged between bytes 0 and")
        assert checked(state, "--repair") == (0, [fault | {"mended": True}]) and not list((state / RUNS).iterdir())
        assert outputs(state) == right
        assert mmqjp("check-store", state).stdout.endswith(" rows compared, 0 faults\n")


ORPHANS = [
    ("INSERT INTO memberships VALUES (77, 1, 1, NULL)", "memberships", "1 row with a qid that is missing in"),
    ("INSERT INTO bound VALUES (999, 0, 1, 2)", "bound", "with a docid that is missing in r_docts, such as docid"),
    ("INSERT INTO undelivered VALUES ('s', 47, 'x', 1, 'y', 1)", "undelivered", "1 row about outputs after"),
    ("DELETE FROM r_docts WHERE docid = 3", "r_doc", "rows with a docid that is missing in r_docts, such as docid 3"),
]  # fmt: skip


def test_rows_that_refer_to_nothing_are_dropped(state, right):
    with duckdb.connect(str(state / DUCKDB_FILE)) as connection:
        for sql, _, _ in ORPHANS:
            connection.execute(sql)
    status, faults = checked(state)
    for _, table, what in ORPHANS:
        assert [fault for fault in faults if fault["place"] == table and what in fault["what"]], faults
    assert status == 1
    status, mended = checked(state, "--repair")
    assert status == 0 and all(fault["mended"] for fault in mended) and len(mended) >= len(faults)
    assert outputs(state) == right


LOST = {
    "DELETE FROM match_rows WHERE match % 2 = 0": "lack matches, such as answer",
    "DELETE FROM documents WHERE docid > 20": "lack documents, such as match",
    "DELETE FROM memberships": "had other recipients when they were made",
    "UPDATE answers SET last_seq = last_seq + 1": "have wrong numbers of outputs",
    "INSERT INTO settings VALUES ('sink:x', '{\"acked\": 9999}', 1)": "the sink x has output 9999, but the last",
}


def test_what_cannot_be_made_again_is_told(state):
    with duckdb.connect(str(state / DUCKDB_FILE)) as connection:
        for sql in LOST:
            connection.execute(sql)
    result = mmqjp("check-store", state, "--repair")
    assert result.exit_code == 1 and "restore an older copy of the store" in result.stdout
    assert [what for what in LOST.values() if what not in result.stdout] == []


def test_lost_commits_are_accepted(stores, tmp_path):
    state = shutil.copytree(stores / "killed", tmp_path / "gone")
    (state / f"{DUCKDB_FILE}.wal").unlink()
    cut = shutil.copytree(stores / "killed", tmp_path / "cut")
    assert checked(cut) == (0, [])
    content = (cut / f"{DUCKDB_FILE}.wal").read_bytes()
    (cut / f"{DUCKDB_FILE}.wal").write_bytes(content[: len(content) // 2] + b"?" + content[len(content) // 2 + 1 :])
    for one in (state, cut):
        status, faults = checked(one)
        assert status == 1 and [fault["place"] for fault in faults] == [DUCKDB_FILE] and faults[0]["remedy"]
        status, faults = checked(one, "--repair")
        assert status == 0 and faults[0]["mended"]
        assert (one / COMMITTED).exists()
        with Session("duckdb", state=one) as engine:
            engine.subscribe(QUERIES)
            engine.process(batch(0))


def test_a_damaged_file_of_a_spark_store_is_left_out_unless_the_store_needs_it(stores, tmp_path):
    for table, is_needed in (("documents", False), ("variables", True)):
        state = shutil.copytree(stores / "files", tmp_path / table)
        path = min((state / table).iterdir())
        harm(path, path.stat().st_size // 2)
        status, faults = checked(state)
        assert status == 1 and faults[0]["place"] == str(path.relative_to(state))
        assert "is not what was" in faults[0]["what"]
        assert (faults[0]["remedy"] is None) == is_needed
        status, faults = checked(state, "--repair")
        assert faults[0]["mended"] == (not is_needed) and path.exists() == is_needed
        moved = [] if is_needed else [f"{table}-{path.name}"]
        assert [file.name for file in state.glob(f"{QUARANTINE}/*")] == moved
        assert status == is_needed or [fault for fault in faults if "lack documents" in fault["what"]]


def test_a_spark_store_without_its_newest_manifest_goes_on_from_an_older_one(stores, right, tmp_path):
    for how in ("gone", "damaged"):
        state = shutil.copytree(stores / "files", tmp_path / how)
        older, newest = sorted((state / SPARK_MANIFESTS).iterdir(), key=lambda path: int(path.stem))[-2:]
        whole = json.loads(newest.read_text())
        write_manifest(older, Manifest(read_manifest(newest, FLAT_STORE | SCHEMA).files, 1), FLAT_STORE | SCHEMA)
        write_mark(state / COMMITTED, int(newest.stem))
        newest.unlink() if how == "gone" else newest.write_text(json.dumps(whole | {"written_at": 7}))
        status, (fault,) = checked(state)
        assert status == 1 and fault["place"] == SPARK_MANIFESTS and newest.name in fault["what"]
        assert checked(state, "--repair") == (0, [fault | {"mended": True}]) and outputs(state) == right


@pytest.mark.parametrize("seed", seeds(2, 300))
def test_a_repair_leaves_nothing_to_repair(seed, stores, tmp_path):
    """Whatever was damaged, a check ends with findings, a second repair finds nothing to do, and what is said to be
    whole is readable."""
    rng = Random(seed)
    store = stores / rng.choice(["closed", "killed", "files"])
    how = rng.choice([damaged, lost_or_swapped])(rng, store, tmp_path / "copy")
    for options in ((), ("--repair",), ("--repair",)):
        result = mmqjp("check-store", tmp_path / "copy", *options)
        assert result.exit_code in (0, 1), how
        assert "unexpected" not in result.output and "Traceback" not in result.output, how
    assert "repaired:" not in result.stdout, how
    if result.exit_code == 0:
        with suppress(Outdated):  # it has lost all commits
            outputs(tmp_path / "copy")


def test_a_store_in_use_is_refused(state):
    with Session("duckdb", state=state):
        for options in ((), ("--repair",)):
            assert "is in use by process" in refused("check-store", state, *options)


def test_a_directory_without_a_store_is_left_alone(tmp_path):
    assert checked(tmp_path)[0] == 1
    assert "there is no store in" in refused("check-store", tmp_path, "--repair")
    assert not list(tmp_path.iterdir())
    (tmp_path / RUNS).mkdir()
    assert "has lost its data" in checked(tmp_path)[1][0]["what"]


def test_a_command_that_is_none_is_moved_away(state):
    (state / "spool" / "commands").mkdir(parents=True)
    (state / "spool" / "commands" / "1.json").write_text("{")
    assert checked(state)[1][0]["place"] == "spool/commands/1.json"
    assert checked(state, "--repair")[0] == 0 and (state / QUARANTINE / "spool-commands-1.json").exists()
