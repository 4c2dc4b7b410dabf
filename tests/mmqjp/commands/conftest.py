"""What tests of the command line share."""

import shutil
from pathlib import Path

import pytest

from tests.support.cli import mmqjp, run_on, write_documents, write_queries
from tests.support.feed_server import rss, running_server


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Arguments of a run that would work on DuckDB; nothing outside configures it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MMQJP_ENGINE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    queries, documents = write_queries(tmp_path), write_documents(tmp_path / "documents.jsonl")
    return ["run", "--queries", str(queries), "--documents", str(documents)]


@pytest.fixture(scope="session")
def finished_story(tmp_path_factory):
    directory = tmp_path_factory.mktemp("story")
    result = run_on(directory, "--state", directory / "state", "--output", directory / "out")
    assert result.exit_code == 0, result.stderr
    return directory / "state"


@pytest.fixture
def story(tmp_path, finished_story):
    return Path(shutil.copytree(finished_story, tmp_path / "state"))


@pytest.fixture
def server():
    with running_server() as server:
        server.serve("/a", rss("one", "two"))
        server.serve("/b", rss("two", "three"))
        yield server


@pytest.fixture
def fetch(tmp_path):
    """Calls `mmqjp fetch` into a directory on loopback, without pauses."""
    return lambda *options: mmqjp("fetch", "--out", tmp_path / "crawl", "--allow-private", "--spacing", "0s", *options)
