"""Holds what SQL shows of outputs against what the engine makes of answers."""

from __future__ import annotations

from collections.abc import Collection

from mmqjp.answers.bindings import json_nodes
from mmqjp.engine import Session
from mmqjp.tables.lookup import quote_literal


def assert_shown(engine: Session, events: Collection[str] = ()) -> None:
    """The view `outputs` has the outputs of the engine, their lines say the same, and each has a match of its query,
    but for those of `events`."""
    outputs = list(engine.outputs())
    shown = engine.sql("SELECT * FROM outputs ORDER BY seq").to_pylist()
    of_sql = [tuple(value for name, value in row.items() if name != "batch") for row in shown]
    assert of_sql == [
        (o.query, o.t0, o.t1, list(o.documents), list(o.streams), json_nodes(o.nodes), o.xml, o.seq, o.id)
        for o in outputs
    ]
    assert b"".join(some.text for some in engine.outputs().lines()) == b"".join(o.to_line() for o in outputs)
    assert sorted(map(repr, engine.lines())) == sorted(map(repr, outputs))
    unlinked = """SELECT count(*) AS n FROM outputs o
LEFT JOIN (SELECT DISTINCT l.seq, m.query FROM output_matches l JOIN matches m ON m.match = l.match) k
ON k.seq = o.seq AND k.query = o.query WHERE k.seq IS NULL"""
    if events:
        unlinked += f" AND o.query NOT IN ({', '.join(map(quote_literal, events))})"
    assert engine.sql(unlinked)["n"].to_pylist() == [0]
