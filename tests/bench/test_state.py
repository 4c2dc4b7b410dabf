import json

import numpy as np
import pytest

from bench import state
from join_stage.signature import join


def test_documents_are_made_again_from_their_numbers():
    whole = state.kept_ranks(60_000, 0, 60_000)
    assert (state.kept_ranks(60_000, 25_000, 30_000) == whole[25_000:30_000]).all()
    assert (whole >= 1).all()
    assert (state.batch_ranks(1_000, 3, 50) == state.batch_ranks(1_000, 3, 50)).all()


def test_expected_rows_are_those_of_all_pairs(monkeypatch):
    monkeypatch.setattr(state, "REPEATED", 20)
    count, batches, size = 300, 3, 25
    ranks = np.concatenate(
        [state.kept_ranks(count, 0, count), *(state.batch_ranks(count, n, size) for n in range(batches))]
    )
    for number, digest in enumerate(state.expected_digests(state.state_queries(), count, batches, size)):
        end = count + (number + 1) * size
        equal = [(ranks[:later] == ranks[later]).astype(int) for later in range(end - size, end)]
        rows = sum(
            int(same[:, [leaf for leaf, _ in query]].all(axis=1).sum()) for same in equal for query in state.QUERIES
        )
        assert digest.rows == rows > 0


@pytest.mark.soak
def test_a_small_one_on_disk(tmp_path, monkeypatch, capsys):
    """Rows of a store with several runs are compared; the processes are replaced by calls."""
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 2_000)
    monkeypatch.setattr(state, "CHUNK", 500)
    monkeypatch.setattr(state, "SIZE", 200)
    monkeypatch.setattr(state, "in_fresh_process", lambda work, item: work(item))
    out = tmp_path / "state.json"
    arguments = ["mmqjp bench state", "--documents", "1000,3000", "--json", str(out), "--plot", str(tmp_path / "state")]
    monkeypatch.setattr("sys.argv", arguments)
    state.bench_state()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["case"]["documents"] for line in lines] == [1000, 3000]
    assert all(line["rows"] > 0 and line["disk"] > 3_000 * state.LEAVES for line in lines)
    assert lines[0]["ratio"] == 1
    assert "batches of 200 documents" in capsys.readouterr().out
    assert (tmp_path / "state.png").stat().st_size > 1_000


def test_a_wrong_row_is_told(monkeypatch):
    monkeypatch.setattr(state, "SIZE", 100)
    monkeypatch.setattr(state, "in_fresh_process", lambda work, item: work(item))
    right = state.expected_digests
    monkeypatch.setattr(state, "expected_digests", lambda work, count, *rest: right(work, count + 1, *rest))
    with pytest.raises(AssertionError, match="other rows"):
        state.measure_state(500)


def test_a_run_that_grows_is_told():
    samples = [state.StateSample(n, 1.0, 100, 100, n, 100, 100) for n in range(1, 41)]
    assert state.grown_figures(samples) == ["kept"]
