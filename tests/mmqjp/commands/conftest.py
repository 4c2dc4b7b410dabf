"""What tests of the command line share."""

import pytest

from tests.support.cli import write_documents, write_queries


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Arguments of a run that would work on DuckDB; nothing outside configures it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MMQJP_ENGINE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    queries, documents = write_queries(tmp_path), write_documents(tmp_path / "documents.jsonl")
    return ["run", "--queries", str(queries), "--documents", str(documents)]
