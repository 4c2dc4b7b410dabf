"""What tests of the engine share."""

import pytest

from mmqjp.session import Session


@pytest.fixture
def engine():
    with Session("duckdb") as opened:
        yield opened
