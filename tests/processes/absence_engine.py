"""An engine that decides absences and is killed: `python -m tests.processes.absence_engine STATE SEED POINT CALLS`.

POINT is `before` or `after` and a call of the store, as in `after commit`; CALLS of these are outlived.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from feeds.documents import Document
from join_stage.duckdb import DuckDBEngine
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.support.faults import arm, kill
from xscl.parser import parse_script

LATENESS = 2 * SECOND
SCRIPT = """S//a->x NOT FOLLOWED BY {x = y, 2} S//b->y PUBLISH silent;
S//a->x NOT JOIN {x = y, 1} S//b->y PUBLISH lone;
S//a->x NOT PRECEDED BY {near(x, y, 0.5), 5} S//a->y PUBLISH fresh;
silent//a->x FOLLOWED BY {x = y, 6} S//a->y PUBLISH again;
S//a->x NOT JOIN {x = y, 3} lone//a->y PUBLISH others;
S//a->x NOT FOLLOWED BY {x = y, 1} S//b->y FOLLOWED BY {x = z, 5} S//a->z PUBLISH chained"""
SIZE = 3


def batches(seed: int) -> list[list[Document]]:
    """Documents that are not late, in batches of SIZE."""
    rng, time, found = Random(seed), 0, list[Document]()
    for number in range(8 * SIZE):
        time += rng.choice((0, 0, 1, 1, 2)) * SECOND
        text = f"<r><{(tag := rng.choice('aab'))}>{rng.choice('uuvw')}</{tag}></r>"
        found.append(Document(f"d{number}", text, time=time - rng.choice((0, 0, LATENESS))))
    return [found[at : at + SIZE] for at in range(0, len(found), SIZE)]


def opened(state: Path) -> Session:
    """An engine over the state that has the queries."""
    engine = Session("duckdb", state=state, lateness=LATENESS)
    engine.ensure(parse_script(SCRIPT))
    return engine


def main(state: str, seed: str, point: str, calls: str) -> None:
    when, name = point.split()
    engine = opened(Path(state))
    arm((DuckDBEngine, name), kill, int(calls) + 1, after=when == "after")
    for batch in batches(int(seed)):
        engine.process(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
