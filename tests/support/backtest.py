"""Back-tests without a process of their own."""

from collections.abc import Iterable

import pyarrow as pa
import pytest

from mmqjp.backtest import Backtest, TrialRequest, try_script


def try_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes seconds to start. tests/mmqjp/backtest/test_store.py shows what is special about it."""

    def run(request: TrialRequest, batches: Iterable[pa.RecordBatch], **_: object) -> Backtest:
        return list(try_script(request, iter(batches), lambda: 0.0, lambda: 0))[-1]

    monkeypatch.setattr("mmqjp.backtest.run_process", run)
