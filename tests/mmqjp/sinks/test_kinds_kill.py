"""Services with a sink of each kind, killed anywhere: each output arrives, exactly once where that is promised."""

from pathlib import Path

import pytest

from tests.processes import nursery


def assert_all_delivered(directory: Path, seeds: range) -> None:
    done = nursery.run("tests.processes.sinks", directory, *seeds)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    outputs, kills = (int(part.split()[0]) for part in done.stderr.splitlines()[-1].split(", "))
    assert outputs > 20 * len(seeds) and kills > len(seeds)


def test_each_output_is_delivered_whatever_is_killed(tmp_path: Path):
    assert_all_delivered(tmp_path, range(10, 13))


@pytest.mark.soak
def test_each_output_is_delivered_whatever_is_killed_at_length(tmp_path: Path):
    assert_all_delivered(tmp_path, range(20, 80))
