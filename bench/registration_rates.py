"""How many queries are registered per second: equal ones under other names, ones that differ in constants, quite
different ones. Each kind has a process of its own, and an engine on DuckDB in memory.

Before a time is reported, some of the queries are registered one by one in a second engine, which must give the same
outputs for a few documents. Times are seconds of CPU, from the text of the script to the registered queries.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage

from bench.registration_scripts import KINDS, WRONG, documents, queries, script
from bench.stage2_report import Column, Line
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.engine import Session

RATES = tuple(kind for kind in KINDS if kind not in WRONG)
COMPARED, PAIRS = 40, 6
"""The number of queries that are also registered one by one, and of pairs of documents for them."""


@dataclass(frozen=True)
class Rate:
    """So many queries of a kind are registered."""

    kind: str
    number: int


def measure_rate(case: Rate) -> Line:
    """Registers a script. Raises AssertionError if queries are missing, or get something else one by one."""
    outputs = compare(case.kind)
    text = script(case.kind, case.number)
    with Session("duckdb") as engine:
        begin = time.process_time()
        engine.subscribe(text)
        seconds = time.process_time() - begin
        count = len(engine.registry.subscriptions)
    assert count == case.number, f"{case.kind}: {count} queries are registered, not {case.number}"
    rss = getrusage(RUSAGE_SELF).ru_maxrss >> 10
    details = {"queries_a_second": count / seconds, "rss_mib": rss, "compared_outputs": outputs}
    about = {"what": "subscribe", "kind": case.kind, "queries": case.number}
    return Line("registration", about, "duckdb", DEFAULT_PLAN, seconds, count, None, None, details=details)


def compare(kind: str) -> int:
    """Compares a script with its queries one by one, and returns how many outputs they have."""
    found = []
    for texts in ([script(kind, COMPARED)], list(queries(kind, COMPARED))):
        with Session("duckdb") as engine:
            for text in texts:
                engine.subscribe(text)
            outputs = engine.process(documents(PAIRS))
            found.append(sorted((o.query, o.documents, sorted(o.nodes.items()), o.xml, o.id) for o in outputs))
    assert found[0] == found[1], f"{kind}: queries get something else if they are registered one by one"
    return len(found[0])


COLUMNS: tuple[Column, ...] = (
    ("what", lambda line: line.case["what"]),
    ("kind", lambda line: line.case["kind"]),
    ("queries", lambda line: line.case["queries"]),
    ("seconds", lambda line: line.seconds),
    ("queries/s", lambda line: line.details["queries_a_second"]),
    ("wall, s", lambda line: line.details.get("wall_seconds")),
    ("memory, MiB", lambda line: line.details["rss_mib"]),
)
