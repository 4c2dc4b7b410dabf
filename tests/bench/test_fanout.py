import pytest

from bench.fanout import FANOUT_KINDS, FanoutCase, beside_one, draw_fanout, measure_fanout
from xscl.parser import parse_script


@pytest.mark.parametrize("kind", FANOUT_KINDS)
def test_each_kind_gets_what_its_queries_get_alone(kind, tmp_path):
    lines = beside_one([measure_fanout(FanoutCase(kind, queries, pairs=20)) for queries in (1, 7)])
    if kind != "keywords":
        assert [line.rows for line in lines] == [20, 140]
    assert lines[1].baseline == "one query" and lines[0].baseline is None
    assert lines[1].details["over_one_query"] == lines[1].seconds / lines[0].seconds
    if kind == "same":
        draw_fanout(lines, tmp_path / "it")
        assert "seconds of CPU to commit" in (tmp_path / "it.svg").read_text()


def test_each_word_is_asked_for():
    case = FanoutCase("keywords", 1_000, pairs=200)
    assert len(parse_script(case.script(range(1_000))).queries) == 1_000
    assert measure_fanout(case).rows == 200, case.documents()
