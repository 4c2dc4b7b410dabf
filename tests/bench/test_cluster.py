import json
from itertools import combinations

import pytest

from bench import cluster
from bench.spark_cluster import SETTINGS
from bench.state import LEAVES

COUNT = 300


def test_what_is_expected_is_what_each_pair_of_documents_gives():
    batches = [cluster.batch_values(COUNT, number, 40, 0.5) for number in range(2)]
    rows = [*cluster.kept_values(COUNT, 0, COUNT).tolist(), *(row for batch in batches for row in batch.tolist())]
    wanted = {
        (cluster.query_name(leaves), f"d{one}", f"d{other}")
        for one, other in combinations(range(len(rows)), 2)
        if other >= COUNT
        for leaves in cluster.SETS
        if all(rows[one][leaf] == rows[other][leaf] for leaf in leaves)
    }
    assert cluster.expected_rows(COUNT, batches) == wanted and len(wanted) > 300
    assert len(cluster.SETS) == 2**LEAVES - LEAVES - 1


def test_a_missing_line_or_one_too_many_is_an_error(tmp_path):
    batches = [cluster.batch_values(COUNT, 0, 40, 0.5)]
    lines = [{"query": query, "documents": [one, other]} for query, one, other in cluster.expected_rows(COUNT, batches)]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cluster.check_lines(COUNT, batches, path) == len(lines)
    for wrong in (lines[1:], [*lines, lines[0]]):
        path.write_text("".join(json.dumps(line) + "\n" for line in wrong))
        with pytest.raises(AssertionError, match="instead of"):
            cluster.check_lines(COUNT, batches, path)


@pytest.mark.spark
@pytest.mark.soak  # it starts two clusters, one after the other
def test_a_small_case_is_measured(monkeypatch):
    """Two workers join a batch of a state, and the driver another one; the lines of both are those of the values."""
    monkeypatch.setattr("bench.cluster.QUIET", cluster.QUIET / 4)
    (line,) = cluster.measure_cluster(1_000, workers=(2,), sizes=(2_200, 60), kills=False)
    assert line.rows > 5_000
    assert 0 < line.number("share") < 1 and line.number("executors") > 0 and line.number("driver") > 0
    heap = int(SETTINGS["spark.driver.memory"].removesuffix("m")) << 20
    assert 0 < line.number("jvm") < 2 * heap
