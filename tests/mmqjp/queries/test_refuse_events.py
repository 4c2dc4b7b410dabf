"""Event statements are refused where they cannot be run, so that none is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mmqjp import Engine
from mmqjp.cli import main
from mmqjp.queries.event_changes import InvalidEvents

SCRIPT = "DEFINE EVENT Post FROM S//item->i (title := i/title); FROM Post PUBLISH posts; FROM S//item PUBLISH items"


def test_a_backfill_refuses_them_and_changes_nothing():
    with Engine("duckdb") as engine:
        with pytest.raises(InvalidEvents, match="cannot be answered over stored documents"):
            engine.subscribe(SCRIPT, backfill=True)
        assert engine.queries() == {}


def test_explain_and_backtest_refuse_them_in_one_line(tmp_path: Path):
    path = tmp_path / "posts.xscl"
    path.write_text(SCRIPT)
    for command in (["explain", str(path)], ["backtest", str(path), "--documents", str(tmp_path)]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 1, result.output
        assert "event statements cannot be tried here; leave them out: Post, posts" in result.output
