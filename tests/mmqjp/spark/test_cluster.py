"""A real cluster, on loopback: an executor and the driver are killed amid batches, and all comes out that should."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import mmqjp.spark_job
from bench.spark_cluster import PATIENCE, Application, Cluster, NotInTime, kill, running_cluster, wait_until
from mmqjp.engine import Session
from tests.support.cli import mmqjp as mmqjp_command
from tests.support.service import Directory, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES, LINES = 3, 30
PADDING = f"<p>{'p' * 3_000}</p>"
"""So that a file is worth two tasks."""

QUERIES = """
S//a[./b->x] FOLLOWED BY {x = y, 40} S//a[./b->y] PUBLISH pairs;
S//a[./b->x][./c->u] JOIN {x = y AND u = v, 60} S//a[./b->y][./c->v] PUBLISH twice
"""


def fill(place: Directory) -> None:
    """Files of documents, some of them broken, in the order of their names."""
    rng = Random(5)
    for number in range(FILES):
        lines = []
        for n in range(number * LINES, (number + 1) * LINES):
            xml = f"<a><b>{rng.randrange(9)}</b><c>{rng.randrange(5)}</c>{PADDING}</a>" if n % 10 else "<a><b>"
            lines.append(json.dumps({"id": f"d{n}", "time": n * 2_000_000, "xml": xml}) + "\n")
        (place.drops / f"2026010{number + 1}T000000Z-0123456789ab.jsonl").write_text("".join(lines))


def outcome(place: Directory, spark: SparkSession) -> tuple[Counter[str], Counter[str], list[str], list[str]]:
    """The lines of the output file, the outputs of the store, the ids of its documents and of its dead letters."""
    lines = Counter(place.output.read_text().splitlines())
    with Session(spark, state=place.state) as engine:
        kept = Counter(json.dumps(o.to_dict(), ensure_ascii=False) for o in engine.outputs())
        sql = "SELECT id FROM documents WHERE kind = 'external' ORDER BY docid"
        ids = [row["id"] for row in engine.sql(sql).to_pylist()]
        return lines, kept, ids, sorted(letter["id"] for letter in engine.dead_letters())


def amid(place: Directory, number: int) -> bool:
    """Whether a micro-batch from this one on is begun and not done, as Spark's checkpoint says."""
    checkpoint = place.state / "checkpoint" / "files"
    begun, done = (
        {int(path.name) for path in (checkpoint / name).glob("*") if path.name.isdecimal()}
        for name in ("offsets", "commits")
    )
    return any(one >= number for one in begun - done)


def kill_amid(cluster: Cluster, driver: Application, place: Directory) -> None:
    """Kills an executor in the first micro-batch, and the driver in the second."""
    try:
        wait_until(lambda: amid(place, 0), "the first micro-batch", driver.runs)
        kill(cluster.executors()[0])
        wait_until(lambda: amid(place, 1), "the second micro-batch", driver.runs)
    except NotInTime as error:
        raise AssertionError(driver.said()[-3000:]) from error
    finally:
        driver.kill()


@pytest.mark.soak  # the other test kills as much
def test_killed_executors_and_drivers_lose_nothing_and_repeat_nothing(spark: SparkSession, tmp_path: Path):
    local, place = (Directory(path) for path in (tmp_path / "local", tmp_path / "cluster"))
    for one in (local, place):
        fill(one)
    stream(local, spark, QUERIES, batch_size=LINES)
    queries = tmp_path / "q.xscl"
    queries.write_text(QUERIES)
    options = ["--source", place.drops, "--state", place.state, "--output", place.output, "--queries", queries]
    options += ["--lateness", "INF", "--max-ahead", "INF", "--batch-size", LINES, "--plan", "basic", "--log", "json"]
    job = Path(mmqjp.spark_job.__file__)
    with running_cluster(tmp_path / "spark") as cluster:

        def started(name: str, trigger: str) -> Application:
            return cluster.submit(name, job, [*map(str, options), "--trigger", trigger])

        driver = started("first", "1s")
        kill_amid(cluster, driver, place)
        last = started("second", "available-now")
        assert last.process.wait(PATIENCE) == 0, last.said()
        ran = cluster.workers_by_stage()
    assert outcome(place, spark) == outcome(local, spark)
    lines, kept, ids, dead = outcome(place, spark)
    assert lines == kept and max(lines.values()) == 1 and len(lines) > 100
    assert len(ids) == len(set(ids)) and len(ids) + len(dead) == FILES * LINES
    assert len(ran["stage 1"]) == 2 and len(ran["join"]) == 2, "both workers did both"


LARGE = 2_200
"""Documents of a micro-batch that executors join."""

JOINED = """
S//a[./b->x] FOLLOWED BY {x = y, 40} S//a[./b->y] PUBLISH pairs;
S//a[./b->x][./c->u] JOIN {x = y AND u = v, INF} S//a[./b->y][./c->v] PUBLISH twice;
S//a[./b->x] JOIN {x = y AND contains(x, "7"), 90} S//a[./b->y] PUBLISH sevens;
pairs//b->x JOIN {x = y, 1} S//a[./b->y] PUBLISH again
"""


@pytest.mark.soak
def test_what_executors_join_and_write_is_what_the_embedded_engine_finds(tmp_path: Path):
    """An executor is killed in the first micro-batch, and the driver in the second. A cold start with one micro-batch
    of each kind is behind them: one that the driver joins alone, and two that executors join."""
    local, place = (Directory(path) for path in (tmp_path / "local", tmp_path / "cluster"))
    rng = Random(7)
    first = 0
    for number, count in enumerate((LARGE, LARGE, 90)):
        lines = []
        for n in range(first, first + count):
            xml = f"<a><b>{rng.randrange(LARGE)}</b><c>{rng.randrange(5)}</c></a>"
            lines.append(json.dumps({"id": f"d{n}", "time": 1_700_000_000_000_000 + n * 1_000_000, "xml": xml}) + "\n")
        first += count
        for one in (local, place):
            (one.drops / f"2026010{number + 1}T000000Z-0123456789ab.jsonl").write_text("".join(lines))
    queries = tmp_path / "q.xscl"
    queries.write_text(JOINED)

    def options_of(one: Directory) -> list[str]:
        where = ["--source", one.drops, "--state", one.state, "--output", one.output, "--queries", queries]
        more = ["--lateness", "INF", "--max-ahead", "INF", "--batch-size", LARGE, "--log", "json"]
        return [*map(str, where), *map(str, more)]

    embedded = mmqjp_command("stream", "--engine", "duckdb", "--trigger", "available-now", *options_of(local))
    assert embedded.exit_code == 0, embedded.output
    options = options_of(place)
    job = Path(mmqjp.spark_job.__file__)
    with running_cluster(tmp_path / "spark") as cluster:
        driver = cluster.submit("first", job, [*options, "--trigger", "1s"])
        kill_amid(cluster, driver, place)
        last = cluster.submit("second", job, [*options, "--trigger", "available-now"])
        assert last.process.wait(PATIENCE) == 0, last.said()
    found, wanted = (sorted(one.output.read_text().splitlines()) for one in (place, local))
    assert found == wanted and len(found) > 1_500
    by_executors = [path for path in (place.state / "answers").iterdir() if path.stem.count("-") == 3]
    assert by_executors, "executors have written answers"
