import pytest

from tests.support.faults import FaultySession


@pytest.fixture
def engine():
    """An engine on DuckDB whose store fails where a test wants it to."""
    with FaultySession("duckdb") as opened:
        yield opened
