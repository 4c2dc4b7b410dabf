"""What a query SELECTs, written into outputs: constants and texts with the signs that formats are made of."""

import json

from feeds.documents import Document
from mmqjp.engine import Session

LEFT = '<a id="7%"><t>A%s &lt;</t></a>'
RIGHT = "<b><t>A%s &lt;</t></b>"
OPS = ("JOIN", "FOLLOWED BY")
JOIN = "FROM S//a->x[./t->t] JOIN {t = u, 1 h} S//b->y[./t->u]"


SELECTED: dict[str, tuple[dict[str, int | str], str]] = {
    "*": ({"x": 0, "y": 0}, f"{LEFT}{RIGHT}"),
    'x, "100% <%s" AS c': ({"x": 0}, f"<x>{LEFT}</x><c>100% &lt;%s</c>"),
    '"50%" AS c': ({}, "<c>50%</c>"),
    'x/@id AS i, t, "%%d" AS c': ({"i": "0/@id", "t": 1}, "<i>7%</i><t><t>A%s &lt;</t></t><c>%%d</c>"),
    "lower-case(t) AS l, t": ({"l": 1, "t": 1}, "<l>a%s &lt;</l><t><t>A%s &lt;</t></t>"),
}


def test_signs_of_formats_stay_what_they_are():
    expected = {f"SELECT {select} {JOIN.replace('JOIN', op)}": SELECTED[select] for op in OPS for select in SELECTED}
    with Session("duckdb") as engine:
        engine.subscribe("; ".join(f"{text} PUBLISH q{number}" for number, text in enumerate(expected)))
        outputs = list(engine.process([Document("1", LEFT, time=1), Document("2", RIGHT, time=2)]))
        assert list(engine.outputs()) == outputs
    assert len(outputs) == len(expected)
    for output in outputs:
        nodes, xml = list(expected.values())[int(output.query[1:])]
        assert output.nodes == nodes
        assert output.xml == f'<match query="{output.query}" t0="{output.t0}" t1="{output.t1}">{xml}</match>'
        assert json.loads(output.to_line())["xml"] == output.xml
