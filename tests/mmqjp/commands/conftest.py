"""What tests of the command line share."""

import shutil
from pathlib import Path

import pytest

from tests.support.cli import run_on


@pytest.fixture(scope="session")
def finished_story(tmp_path_factory):
    directory = tmp_path_factory.mktemp("story")
    result = run_on(directory, "--state", directory / "state", "--output", directory / "out")
    assert result.exit_code == 0, result.stderr
    return directory / "state"


@pytest.fixture
def story(tmp_path, finished_story):
    return Path(shutil.copytree(finished_story, tmp_path / "state"))
