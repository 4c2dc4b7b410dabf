import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from feeds import confined
from feeds.documents import Reject
from feeds.readers import Offset
from feeds.tail import ReadItem
from mmqjp import spark_job
from mmqjp.spark import source
from tests.generate.seeds import seeds
from tests.support.files import archive
from tests.support.unreadable import failing, shut

LIMIT = ReadAllAvailable()


def line(id: str, text: str = "") -> str:
    return json.dumps({"id": id, "xml": f"<a>{text}</a>"}) + "\n"


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "start_thread", lambda work: work())


class Driver:
    def __init__(self, directory: Path, **options: int) -> None:
        self.drops = directory / "drops"
        self.drops.mkdir(exist_ok=True)
        self.plans = source.PlanFiles(directory / "plans")
        self.positions: dict[tuple[str, str], Offset] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.source = source.FileSource((source.SourcePath(self.drops),), **options)  # type: ignore[arg-type]
        self.start = {"plan": 0}
        self.restart()

    def restart(self) -> None:
        self.reader = source.FileReader(self.source, lambda: self.positions, self.plans, lambda: 7)

    def until_read(self, looks: int) -> list[str]:
        return [id for _ in range(looks) for id in self.step()]

    def planned(self) -> list[source.PlanPartition]:
        self.end = self.reader.latestOffset(self.start, LIMIT)
        return self.tasks()

    def tasks(self) -> list[source.PlanPartition]:
        found = self.reader.partitions(self.start, self.end)
        return [share for share in found if isinstance(share, source.PlanPartition)]

    def rows(self, shares: list[source.PlanPartition]) -> pa.Table:
        found = [batch for share in reversed(shares) for batch in self.reader.read(share)]
        return pa.Table.from_batches(found, source.ROWS).sort_by("place")

    def read(self, shares: list[source.PlanPartition]) -> pa.Table:
        rows, self.failed = source.split_unreadable(self.rows(shares))
        return source.uncommitted(rows, self.positions)

    def commit(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            where = row["source"], row["file"]
            self.positions[where] = Offset(*where, row["position"], row["fingerprint"] or "")

    def step(self) -> list[str]:
        """The ids of the next micro-batch, which is done then."""
        rows = self.read(self.planned())
        self.commit(rows)
        self.reader.commit(self.end)
        self.start = self.end
        return [id for id in rows["id"].to_pylist() if id is not None]


def test_micro_batches_end_where_they_are_full_and_go_on_there(tmp_path):
    driver = Driver(tmp_path, most=3)
    (driver.drops / "1.jsonl").write_text("".join(map(line, "abcd")))
    (driver.drops / "2.xml").write_text("<a/>")
    os.utime(driver.drops / "1.jsonl", (1, 1))
    assert driver.step() == ["a", "b", "c"]
    with (driver.drops / "1.jsonl").open("a") as file:
        file.write(line("e") + '{"id": "half')
    assert driver.step() == ["d", "e", "2.xml"]
    assert driver.planned() == [] and driver.end == driver.start
    with (driver.drops / "1.jsonl").open("a") as file:
        file.write('", "xml": "<a/>"}')
    assert driver.step() == ["half"], "a last line need not be ended if it is whole"
    (driver.drops / "1.jsonl").write_text(line("f"))
    assert driver.step() == ["f"], "written anew"
    large = Driver(tmp_path, most_bytes=100)
    large.positions = driver.positions
    for name in "xyz":
        (driver.drops / f"{name}.jsonl").write_text(line(name, "v" * 60))
    assert [large.step(), large.step(), large.step()] == [["x", "y"], ["z"], []]


def test_lines_are_read_in_many_tasks_and_admitted_in_their_order(tmp_path):
    driver = Driver(tmp_path, grain=100, tasks=8)
    (driver.drops / "1.jsonl").write_text("\n".join(map(line, map(str, range(40)))))
    tasks = driver.planned()
    assert 5 <= len(tasks) <= 8
    rows = driver.read(tasks)
    assert [id for id in rows["id"].to_pylist() if id] == [str(n) for n in range(40)]
    assert set(rows["t0"].to_pylist()) == {7, None}, "the time is that of the plan"


def test_a_plan_that_spark_has_not_heard_of_is_made_anew_and_one_that_it_has_is_not(tmp_path):
    driver = Driver(tmp_path)
    (driver.drops / "1.jsonl").write_text(line("a"))
    first = driver.planned()
    (driver.drops / "0.xml").write_text("<a/>")
    os.utime(driver.drops / "0.xml", (0, 0))
    assert driver.reader.partitions({"plan": 0}, {"plan": 1}) == first
    driver.restart()
    assert driver.reader.partitions({"plan": 0}, {"plan": 1}) == first
    assert driver.step() == ["0.xml", "a"]
    assert driver.reader.partitions({"plan": 5}, {"plan": 6}) == [], "a plan that is gone is of nothing"


def test_what_comes_after_the_beginning_is_not_for_a_run_over_what_is_there(tmp_path):
    driver = Driver(tmp_path, most=1)
    for name in "ab":
        (driver.drops / f"{name}.xml").write_text("<a/>")
    driver.reader.prepareForTriggerAvailableNow()
    (driver.drops / "c.xml").write_text("<a/>")
    assert [driver.step(), driver.step(), driver.step()] == [["a.xml"], ["b.xml"], []]


def test_what_has_gone_meanwhile_is_told_and_read_when_it_is_there_again(tmp_path):
    driver = Driver(tmp_path)
    texts = {"a.xml": "<a/>", "b.jsonl": line("b"), "c.warc": "", "d.xml": "<a/>"}
    for name, text in texts.items():
        (driver.drops / name).write_text(text)
    tasks = driver.planned()
    gone = [*texts][:3]
    for name in gone:
        (driver.drops / name).unlink()
    rows = driver.read(tasks)
    assert rows["id"].to_pylist() == ["d.xml", None]
    assert [file for (_, file), why in sorted(driver.failed.items()) if "No such file" in why] == gone
    driver.commit(rows)
    driver.start = driver.end
    for name in gone:
        (driver.drops / name).write_text(texts[name])
    assert sorted(driver.until_read(3)) == ["a.xml", "b"] and not driver.failed
    assert driver.end == driver.start


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_what_cannot_be_read_further_is_let_rest_and_ends_a_run_over_what_is_there(tmp_path, name):
    driver = Driver(tmp_path)
    (driver.drops / "y.jsonl").write_text(line("y"))
    text = "".join(line(f"{n}", os.urandom(300).hex()) for n in range(90)).encode()
    (driver.drops / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with failing(driver.drops / name, after=30_000):
        first = driver.step()
        assert 9 < len(first) < 80 and "y" in first
        assert driver.until_read(70) == []
        # After the first look it is let rest for 1, 2, 4, 8, 16, 16 and 16 looks.
        assert driver.end["plan"] - 1 <= 9
        driver.reader.prepareForTriggerAvailableNow()
        assert driver.until_read(9) == [] and driver.end == driver.start
    driver.restart()
    assert sorted(first + driver.until_read(2)) == sorted([*map(str, range(90)), "y"])


def test_a_file_that_is_replaced_between_the_plan_and_the_task_is_read_as_what_it_is(tmp_path):
    driver = Driver(tmp_path, grain=1, tasks=2)
    path = driver.drops / "1.jsonl"
    path.write_text("".join(map(line, "ab")))
    assert driver.step() == ["a", "b"]
    path.open("a").write("".join(map(line, "cd")))
    tasks = driver.planned()
    path.rename(driver.drops / "1.jsonl.1")
    path.write_text("".join(map(line, "xyzuvw")))
    rows = driver.read(tasks)
    assert len(rows) == 0 and list(driver.failed.values()) == [""]
    driver.start = driver.end
    assert sorted(driver.until_read(4)) == sorted("cdxyzuvw")


def test_a_file_of_more_than_it_looked_is_read_to_its_end_before_those_behind_it(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "LARGE", 2_000)
    driver = Driver(tmp_path)
    text = "".join(line(str(n), "v" * 300) for n in range(20))
    (driver.drops / "1.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (driver.drops / "2.xml").write_text("<a/>")
    (driver.drops / "3.jsonl").write_text("".join(map(line, "xyz")))
    for number in (1, 2, 3):
        os.utime(next(driver.drops.glob(f"{number}.*")), (number, number))
    steps = [driver.step() for _ in range(4)]
    assert [id for step in steps for id in step] == [*map(str, range(20)), "2.xml", *"xyz"]
    assert list(map(len, steps)) == [7, 7, 10, 0]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_large_version_of_a_feed_that_waits_for_an_earlier_one_holds_up_no_other_files(
    tmp_path, monkeypatch, available_now
):
    monkeypatch.setattr(source, "LARGE", 2_000)
    monkeypatch.setattr("feeds.splits.content_bytes", lambda waiting: 100)
    driver = Driver(tmp_path)
    driver.source = source.FileSource((source.SourcePath(driver.drops, "item"),))
    driver.restart()
    items = "".join(f"<item><guid>{n}</guid><title>{n} {'v' * 300}</title></item>" for n in range(20))
    for second in (1, 2):
        feed = driver.drops / f"{second}.xml"
        feed.write_text(f"<rss><channel>{items}</channel></rss>")
        sidecar = {"url": "https://f.example/", "fetched_at": f"1970-01-01T00:00:0{second}Z"}
        feed.with_suffix(".json").write_text(json.dumps(sidecar))
    (driver.drops / "3.jsonl").write_text("".join(map(line, "xyz")))
    if available_now:
        driver.reader.prepareForTriggerAvailableNow()
    with shut(driver.drops / "1.xml"):
        assert [driver.step(), driver.step(), driver.step()] == [[], [*"xyz"], []]


class SlowFeeds(Driver):
    """Feeds named `slow...` and records of archives with "slow" in their text take executors too long. What the driver
    would read in a thread is in `works`."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, large: int = source.LARGE) -> None:
        self.works: list[Callable[[], None]] = []
        self.attempts = 0
        monkeypatch.setattr(source, "LARGE", large)
        monkeypatch.setattr(source, "start_thread", self.works.append)
        monkeypatch.setattr("feeds.feed.confined", self._parse)
        super().__init__(directory)
        self.source = source.FileSource((source.SourcePath(self.drops, "item"),))
        self.restart()

    def _parse(self, work: Callable[..., Any], data: bytes, *more: Any, size: int) -> Any:
        if b"slow" in data and confined._hurry.get() is not None:
            self.attempts += 1
            raise confined.HurriedError
        return confined.confined(work, data, *more, size=size)

    def drop(self, name: str, feed: str, ids: Sequence[str]) -> None:
        """A version of a feed: later than those that are there."""
        text = "".join(f"<item><guid>{id}</guid><title>{id} {'v' * 300}</title></item>" for id in ids)
        (self.drops / f"{name}.xml").write_text(f"<rss><channel><title>{name}</title>{text}</channel></rss>")
        notes = {"url": f"http://{feed}/", "fetched_at": f"1970-01-01T00:01:{len(list(self.drops.iterdir())):02}Z"}
        (self.drops / f"{name}.json").write_text(json.dumps(notes if feed else {}))

    def found(self) -> str:
        return "".join(id.split()[1] for id in self.until_read(6))


@pytest.mark.parametrize("large", [source.LARGE, 900])
def test_a_feed_that_takes_long_to_parse_is_read_by_the_driver_while_others_go_on(tmp_path, monkeypatch, large):
    driver = SlowFeeds(tmp_path, monkeypatch, large)
    driver.drop("slow1", "f", "abcd")
    driver.drop("slow2", "f", "ax")
    driver.drop("other", "g", "y")
    assert (driver.found(), len(driver.works)) == ("y", 1)
    driver.drop("another", "g", "z")
    assert (driver.found(), len(driver.works)) == ("z", 1), "the executors do not try again meanwhile"
    driver.works.pop()()
    driver.planned()
    driver.restart()
    assert (driver.found(), len(driver.works)) == ("", 1), "what was read is gone, and is read again"
    found = ""
    while driver.works:
        driver.works.pop()()
        found += driver.found()
    assert (found, driver.planned()) == ("abcdax", []), "the versions of a feed in order"
    driver.drop("slow3", "f", "b")
    driver.reader.prepareForTriggerAvailableNow()
    assert (driver.found(), driver.works) == ("b", []), "without a hurry if nothing new is waited for"


@pytest.mark.parametrize("feed", ["f{}", ""])
def test_executors_try_each_slow_feed_once_however_many_there_are(tmp_path, monkeypatch, feed):
    driver = SlowFeeds(tmp_path, monkeypatch)
    for number in range(9):
        driver.drop(f"slow{number}", feed.format(number), str(number))
    driver.drop("other", "g", "y")
    assert (driver.found(), driver.attempts) == ("y", 9)
    found = ""
    while driver.works:
        driver.works.pop()()
        found += driver.found()
    assert (sorted(found), driver.attempts) == (list("012345678"), 9)


@pytest.mark.parametrize("seed", seeds(5, 100))
def test_each_item_comes_once_and_in_the_order_of_its_feed_whatever_is_slow(tmp_path, monkeypatch, seed):
    rng = Random(seed)
    driver = SlowFeeds(tmp_path, monkeypatch, rng.choice([source.LARGE, 900, 300]))
    wanted = dict.fromkeys("fgh", "")
    found: list[str] = []
    for number in range(12):
        feed, ids = rng.choice("fgh"), [f"{number}{letter}" for letter in "abc"[: rng.randint(1, 3)]]
        wanted[feed] += "".join(ids)
        driver.drop(f"{rng.choice(['slow', 'fast'])}{number}", feed, ids)
        for _ in range(rng.randint(0, 3)):
            match rng.choice(["step", "step", "read", "restart", "repeat"]):
                case "step":
                    found += driver.step()
                case "read" if driver.works:
                    driver.works.pop(0)()
                case "restart":
                    driver.restart()
                case "repeat":  # part of a micro-batch is committed, and Spark repeats it after a restart
                    rows = driver.read(driver.planned())
                    rows = rows.slice(0, rng.randint(0, len(rows)))
                    driver.commit(rows)
                    found += [id for id in rows["id"].to_pylist() if id is not None]
                    driver.restart()
    for _ in range(60):
        while driver.works:
            driver.works.pop(0)()
        found += driver.step()
    for feed, whole in wanted.items():
        assert "".join(id.split()[1] for id in found if id.startswith(f"http://{feed}/")) == whole
    assert driver.planned() == []


def test_what_the_driver_could_read_of_an_archive_is_there_and_the_damage_is_told(tmp_path, monkeypatch):
    driver = SlowFeeds(tmp_path, monkeypatch)
    texts = [
        f"<rss><channel><item><guid>{id}</guid>{'v' * size}</item></channel></rss>"
        for id, size in (("1 slow", 0), ("2", 90_000))
    ]
    archive(driver.drops / "w.warc", *((f"http://{n}/", text, "2026-01-01T00:00:00Z") for n, text in enumerate(texts)))
    with failing(driver.drops / "w.warc", after=70_000):
        assert driver.until_read(4) == []
        driver.works.pop()()
        steps = [(driver.step(), *driver.failed.values()) for _ in range(4)]
    (found,) = [step for step in steps if step[0]]
    assert found[0][0].startswith("http://0/ 1 slow") and "Input/output error" in found[1]


def test_a_slow_feed_that_is_replaced_is_read_as_what_it_is(tmp_path, monkeypatch):
    driver = SlowFeeds(tmp_path, monkeypatch)
    driver.drop("slow1", "f", "a")
    assert driver.found() == ""
    driver.works.pop()()
    driver.drop("slow1", "f", "bc")
    found = driver.found()
    while driver.works:
        driver.works.pop()()
        found += driver.found()
    assert found == "bc"


def test_rows_without_offsets_are_numbered_within_their_micro_batch():
    item = Reject("r", "S", None, "why", "raw")
    rows = pa.Table.from_batches(
        source.to_batches(source.row_of(n, 0, ReadItem(item, Offset("", "", 0)), None) for n in range(3)), source.ROWS
    )
    found = source.assign_positions(rows, "q", "m", 2)
    assert found.schema == source.ROWS and set(found["source"].to_pylist()) == {"q"}
    assert len(source.uncommitted(found, {("q", "m"): Offset("q", "m", 2 << 32)})) == 3, (
        "of the micro-batch before all is done"
    )
    assert len(source.uncommitted(found, {("q", "m"): Offset("q", "m", (2 << 32) + 1)})) == 2
    assert len(source.uncommitted(found, {("q", "m"): Offset("q", "m", 3 << 32)})) == 0


def test_the_application_for_spark_submit_takes_the_options_of_the_service(capsys):
    with pytest.raises(SystemExit) as ended:
        spark_job.main(["--state", "nowhere"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("mmqjp: error: name what to read, with --source and --fetch, or")
