"""What a query SELECTs, written into outputs: constants and texts with the signs that formats are made of."""

import json

import pytest

from feeds.documents import Document
from mmqjp.engine import Session

LEFT = '<a id="7%"><t>A%s &lt;</t></a>'
RIGHT = "<b><t>A%s &lt;</t></b>"
JOIN = "FROM S//a->x[./t->t] JOIN {t = u, 1 h} S//b->y[./t->u]"


@pytest.mark.parametrize(
    ("select", "nodes", "xml"),
    [
        ("*", {"x": 0, "y": 0}, f"{LEFT}{RIGHT}"),
        ('x, "100% <%s" AS c', {"x": 0}, f"<x>{LEFT}</x><c>100% &lt;%s</c>"),
        ('"50%" AS c', {}, "<c>50%</c>"),
        ('x/@id AS i, t, "%%d" AS c', {"i": "0/@id", "t": 1}, "<i>7%</i><t><t>A%s &lt;</t></t><c>%%d</c>"),
        ("lower-case(t) AS l, t", {"l": 1, "t": 1}, "<l>a%s &lt;</l><t><t>A%s &lt;</t></t>"),
    ],
)
@pytest.mark.parametrize("op", ["JOIN", "FOLLOWED BY"])
def test_signs_of_formats_stay_what_they_are(select: str, nodes: dict[str, int | str], xml: str, op: str):
    with Session("duckdb") as engine:
        engine.subscribe(f"SELECT {select} {JOIN.replace('JOIN', op)} PUBLISH q")
        (output,) = engine.process([Document("1", LEFT, time=1), Document("2", RIGHT, time=2)])
        (line,) = output.to_line().splitlines()
        (stored,) = engine.outputs()
    assert output.nodes == nodes
    assert output.xml == f'<match query="q" t0="{output.t0}" t1="{output.t1}">{xml}</match>'
    assert json.loads(line)["xml"] == output.xml and stored == output
