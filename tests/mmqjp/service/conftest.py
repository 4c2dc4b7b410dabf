from pathlib import Path

import pytest

from tests.support.service import Directory


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)
