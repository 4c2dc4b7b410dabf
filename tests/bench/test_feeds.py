"""`mmqjp bench feeds`: small, for what it says rather than for its times."""

import json
import sys

import pytest

from bench import feeds as bench
from bench.feeds_workload import FORMATS, feed_files
from tests.support.cli import mmqjp


def test_the_formats_give_the_same_entries():
    bench.check(50, 300)


def test_a_difference_between_the_formats_is_an_error(monkeypatch):
    monkeypatch.setattr(bench, "feed_files", lambda format, *rest: feed_files("rss", 20, 0)[: format == "rss"])
    with pytest.raises(AssertionError):
        bench.check(20, 0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_case_accounts_for_all_the_time(format):
    found = bench.measure({"format": format}, feed_files(format, 60, 200), 1)
    assert found.rows == 60
    assert sum(found.shares.values()) == pytest.approx(1)
    assert all(0 < share < 1 for share in found.shares.values())


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """The command sets the arguments of the program, for the benchmark to find."""
    monkeypatch.setattr(sys, "argv", sys.argv)


def test_a_crawl_is_measured_and_written(tmp_path):
    for number, data in enumerate(feed_files("atom", 40, 100)):
        (tmp_path / f"{number}.xml").write_bytes(data)
    result = mmqjp("bench", "feeds", "--documents", tmp_path, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    line = json.loads((tmp_path / "out.json").read_text())
    assert (line["bench"], line["rows"], line["case"]["files"]) == ("feeds", 40, 2)
    assert list(line["shares"]) == ["feedparser", "nh3", "lxml", "ours"]
    assert "crawl" in result.stdout


def test_no_feeds_is_one_line(tmp_path):
    result = mmqjp("bench", "feeds", "--documents", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"mmqjp: error: {tmp_path}: there are no feeds; name a directory of them\n"


@pytest.mark.soak
def test_spark_is_measured_beside_one_core_and_gives_the_same(spark, tmp_path):
    for number, data in enumerate(feed_files("rss", 40, 100)):
        (tmp_path / f"{number}.xml").write_bytes(data)
    result = mmqjp("bench", "feeds", "--engine", "spark", "--documents", tmp_path, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    line = json.loads((tmp_path / "out.json").read_text())
    assert (line["engine"], line["baseline"], line["rows"], line["floor"]) == ("spark", "one core", 40, None)
    assert line["speedup"] > 0 and "over one core" in result.stdout


@pytest.mark.soak
def test_other_documents_on_spark_are_an_error(spark, tmp_path, monkeypatch):
    from bench import feeds_spark

    with monkeypatch.context() as patched:
        patched.setattr(feeds_spark, "read_documents", lambda *arguments, **options: [])
        with pytest.raises(AssertionError, match="do not give the same documents"):
            feeds_spark.measure_spark({"format": "rss"}, feed_files("rss", 20, 0), 1)
