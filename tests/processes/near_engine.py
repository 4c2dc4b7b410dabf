"""An engine that joins by near() and is killed about the time when it learns the order of words:
`python -m tests.processes.near_engine STATE SEED POINT`, where POINT is one of POINTS.
"""

from __future__ import annotations

import sys
from pathlib import Path

from feeds.documents import Document
from join_stage import duckdb, near
from join_stage.duckdb import DuckDBEngine
from join_stage.store.duckdb import DuckDBStore
from mmqjp.engine import Session
from tests.generate.near import near_case
from tests.support.faults import arm, kill
from xscl.syntax import Script

ENOUGH, AGAIN, SIZE = 7, 2, 3
"""From so many texts the order is learnt; so many documents come at a time."""

POINTS = ("learnt", "written", "committed", "used")
"""The order is learnt, but not written; written, but not committed; committed, but no document has its keys in it; and
those of another batch have."""


def case(seed: int) -> tuple[Script, list[list[Document]]]:
    """Queries, and documents in batches."""
    script, documents = near_case(seed, queries=6, documents=16)
    return script, [documents[at : at + SIZE] for at in range(0, len(documents), SIZE)]


def main(state: str, seed: str, point: str) -> None:
    near.ENOUGH, near.AGAIN = ENOUGH, AGAIN
    script, batches = case(int(seed))
    engine = Session("duckdb", state=Path(state))
    engine.ensure(script)

    def is_learnt() -> None:
        # This runs within the engine's commit, before that of the store.
        arm((DuckDBStore if point == "committed" else DuckDBEngine, "commit"), kill, after=True)

    strike = kill if point in ("learnt", "written") else is_learnt
    arm((duckdb, "save_word_order"), strike, after=point != "learnt")
    for batch in batches:
        engine.process(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
