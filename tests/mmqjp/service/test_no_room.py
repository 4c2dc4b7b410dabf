"""A service that is out of room says so, and the next one loses nothing and repeats nothing."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.engine import Session
from tests.processes import nursery
from tests.processes.programs import command
from tests.support.service import PAIRS, Directory


def without_room(place: Directory, most: int | None = None) -> None:
    """Asserts that a service that may write no file of more than `most` bytes, or finds its disk full, says so and
    ends; `place` has queries, and a source elsewhere, since it is not to be full."""

    done = streamed(place, most)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == 1 and len(errors) == 1, done.stderr
    assert errors[0].startswith("mmqjp: error: ") and "unexpected" not in errors[0]
    assert "File too large" in errors[0] or "No space left" in errors[0]
    assert str(place.path) in errors[0] and "make room" in errors[0]


def with_room(place: Directory, documents: int) -> None:
    """Asserts that it goes on where there is room, and that all is there once."""
    done = streamed(place)
    assert done.returncode == 0, done.stderr
    pairs = place.pairs()
    assert len(pairs) == len(set(pairs)) == sum(min(10, documents - 1 - n) for n in range(documents))


def streamed(place: Directory, most: int | None = None) -> "subprocess.CompletedProcess[str]":
    options = ["--engine", "duckdb", "--source", place.drops, "--state", place.state, "--output", place.output]
    options += ["--trigger", "available-now", "--batch-size", "5", "--lateness", "INF", "--log", "json"]
    return nursery.run(command, "stream", *options, most=most)


# DuckDB's file is there: what is less than it cuts into blocks that are in use, as no full disk does.
@pytest.mark.parametrize(("more", "documents"), [(20_000, 40), pytest.param(300_000, 150, marks=pytest.mark.soak)])
def test_a_service_whose_files_cannot_grow_stops_with_the_cause_and_goes_on(more: int, documents: int, tmp_path: Path):
    place = Directory(tmp_path)
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
    place.drop("1.jsonl", range(documents), text="v" * 2_000)
    without_room(place, (place.state / DUCKDB_FILE).stat().st_size + more)
    with_room(place, documents)


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
