"""A service killed with SIGKILL, or out of room, at any step: the next one loses nothing and repeats nothing."""

import json
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.engine import Session
from tests.generate.seeds import seeds
from tests.processes import nursery
from tests.support.service import PAIRS, Directory

KILLS = 2
"""How often a service is killed before it is let to its end."""

SEEDS = 100
"""So that there are 200 kills in all."""

QUERIES = [
    {"text": PAIRS, "add": False, "backfill": True},
    {"text": "S/a->x JOIN {x = y, 5} S/a->y JOIN {y = z, 5} S/a->z PUBLISH chain", "add": True, "backfill": True},
    {"text": "pairs/match->m PUBLISH readers", "add": True, "backfill": False},
]


def prepare(place: Directory, run: int) -> None:
    """What is new before a run: a file, and before the first one the queries."""
    place.drop(f"{run}.jsonl", range(run * 7, run * 7 + 7))
    (place.drops / f"{run}.xml").write_text("<broken>")
    if run == 0:
        for query in QUERIES:
            place.ask("subscribe", **query)


def program(place: Directory, last: int) -> "subprocess.CompletedProcess[str]":
    return nursery.run("tests.processes.service", place.path, last)


def outcome(place: Directory) -> tuple[Counter[str], Counter[str], list[str], int]:
    """The lines of the output file, the outputs in the store, the queries' names, and the dead letters."""
    lines = Counter(place.output.read_text().splitlines())
    with Session("duckdb", state=place.state) as engine:
        kept = Counter(json.dumps(output.to_dict(), ensure_ascii=False) for output in engine.outputs())
        names = sorted(s.name for s in engine.registry.subscriptions.values())
        return lines, kept, names, len(list(engine.dead_letters()))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, list[int]]:
    """What comes out if nobody is killed, and how many steps each run has."""
    place = Directory(tmp_path_factory.mktemp("undisturbed"))
    steps = []
    for run in range(KILLS + 1):
        prepare(place, run)
        steps.append(int(program(place, 0).stdout))
    found = outcome(place)
    assert found[0] == found[1] and max(found[0].values()) == 1 and len(found[0]) > 50 and found[3] == KILLS + 1
    assert found[2] == ["chain", "pairs", "readers"] and min(steps) > 50
    return found, steps


def killed_and_taken_up(place: Directory, seed: int, undisturbed: tuple[object, list[int]]) -> None:
    expected, steps = undisturbed
    rng = random.Random(seed)
    for run in range(KILLS):
        prepare(place, run)
        done = program(place, rng.randint(1, steps[run]))
        assert done.returncode == -signal.SIGKILL, done.stderr
    prepare(place, KILLS)
    assert program(place, 0).returncode == 0
    assert outcome(place) == expected


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_a_killed_service_is_taken_up_again(seed: int, undisturbed: tuple[object, list[int]], tmp_path: Path):
    killed_and_taken_up(Directory(tmp_path), seed, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5, SEEDS))
def test_a_killed_service_is_taken_up_again_at_length(seed: int, undisturbed: tuple[object, list[int]], tmp_path: Path):
    killed_and_taken_up(Directory(tmp_path), seed, undisturbed)


def without_room(place: Directory, most: int | None = None) -> None:
    """Asserts that a service that may write no file of more than `most` bytes, or finds its disk full, says so and
    ends; `place` has queries, and a source elsewhere, since it is not to be full."""

    done = streamed(place, most)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == 1 and len(errors) == 1, done.stderr
    assert errors[0].startswith("mmqjp: error: ") and "unexpected" not in errors[0]
    assert "File too large" in errors[0] or "No space left" in errors[0]
    assert str(place.path) in errors[0]


def with_room(place: Directory, documents: int) -> None:
    """Asserts that it goes on where there is room, and that all is there once."""
    done = streamed(place)
    assert done.returncode == 0, done.stderr
    pairs = place.pairs()
    assert len(pairs) == len(set(pairs)) == sum(min(10, documents - 1 - n) for n in range(documents))


def streamed(place: Directory, most: int | None = None) -> "subprocess.CompletedProcess[str]":
    options = ["--engine", "duckdb", "--source", place.drops, "--state", place.state, "--output", place.output]
    options += ["--trigger", "available-now", "--batch-size", "5", "--lateness", "INF", "--log", "json"]
    return nursery.run("tests.processes.command", "stream", *options, most=most)


# DuckDB's file is there: what is less than it cuts into blocks that are in use, as no full disk does.
@pytest.mark.parametrize("more", [20_000, pytest.param(300_000, marks=pytest.mark.soak)])
def test_a_service_whose_files_cannot_grow_stops_with_the_cause_and_goes_on(more: int, tmp_path: Path):
    place = Directory(tmp_path)
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
    place.drop("1.jsonl", range(150), text="v" * 2_000)
    without_room(place, (place.state / DUCKDB_FILE).stat().st_size + more)
    with_room(place, 150)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a file system of 24 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", path], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize(
    "room", [20_000, *(pytest.param(room, marks=pytest.mark.soak) for room in (250_000, 1_100_000))]
)
def test_a_service_on_a_full_disk_stops_with_the_cause_and_goes_on(room: int, small_disk: Path, tmp_path: Path):
    place = Directory(small_disk)
    place.drops = tmp_path / "drops"
    place.drops.mkdir()
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
    place.drop("1.jsonl", range(300), text="v" * 500)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))
    without_room(place)
    filler.unlink()
    with_room(place, 300)
