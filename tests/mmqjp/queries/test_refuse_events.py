"""Event statements are refused where they cannot be run, and nothing of their script is registered."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from common.errors import InvalidValue
from mmqjp import Engine
from mmqjp.cli import main

SCRIPT = "DEFINE EVENT Post FROM S//item->i (title := i/title); FROM Post PUBLISH posts; FROM S//item PUBLISH items"


def test_subscribe_refuses_them():
    with Engine("duckdb") as engine:
        with pytest.raises(InvalidValue, match="cannot be run in this version; remove them: Post, posts"):
            engine.subscribe(SCRIPT)
        assert engine.queries() == {}


def test_check_refuses_them_in_one_line(tmp_path: Path):
    path = tmp_path / "posts.xscl"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(main, ["check", str(path)])
    assert result.exit_code == 1
    assert "event statements cannot be run in this version; remove them: Post, posts" in result.output
