import json
import sys

import pytest

from bench import feeds
from bench.feeds import FORMATS, check_formats, feed_files, measure_feeds, measure_feeds_on_spark
from tests.support.cli import mmqjp


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """The command sets the arguments of the program, for the benchmark to find."""
    monkeypatch.setattr(sys, "argv", sys.argv)


def test_the_formats_give_the_same_entries():
    check_formats(50, 300)


@pytest.mark.parametrize("format", FORMATS)
def test_a_case_accounts_for_all_the_time(format):
    found = measure_feeds({"format": format}, feed_files(format, 60, 200), 1)
    assert found.rows == 60
    shares = found.details["shares"]
    assert isinstance(shares, dict) and list(shares) == ["feedparser", "nh3", "lxml", "ours"]
    assert sum(shares.values()) == pytest.approx(1) and all(0 < share < 1 for share in shares.values())


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=[pytest.mark.soak, pytest.mark.spark])])
def test_a_crawl_is_measured_and_written(engine, tmp_path):
    for number, data in enumerate(feed_files("atom", 40, 100)):
        (tmp_path / f"{number}.xml").write_bytes(data)
    out = tmp_path / "out.json"
    result = mmqjp("bench", "feeds", "--engine", engine, "--documents", tmp_path, "--json", out)
    assert result.exit_code == 0, result.stderr
    line = json.loads(out.read_text())
    assert (line["bench"], line["rows"], line["case"]["files"], line["case"]["format"]) == ("feeds", 40, 2, "crawl")
    if engine == "spark":
        assert (line["engine"], line["baseline"], line["floor"]) == ("spark", "one core", None)
    assert ("over one core" if engine == "spark" else "nh3") in result.stdout


def test_no_feeds_is_one_line(tmp_path):
    result = mmqjp("bench", "feeds", "--documents", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"mmqjp: error: {tmp_path}: there are no feeds; name a directory of them\n"


@pytest.mark.soak
def test_other_documents_on_spark_are_an_error(spark, monkeypatch):
    monkeypatch.setattr(feeds, "read_documents", lambda *arguments, **options: [])
    with pytest.raises(AssertionError, match="do not give the same documents"):
        measure_feeds_on_spark({"format": "rss"}, feed_files("rss", 20, 0), 1)
