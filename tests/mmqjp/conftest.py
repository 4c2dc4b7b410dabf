from pathlib import Path

import pytest

from tests.support.faults import FaultySession
from tests.support.service import Directory


@pytest.fixture
def engine():
    """An engine on DuckDB whose store fails where a test wants it to."""
    with FaultySession("duckdb") as opened:
        yield opened


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)
