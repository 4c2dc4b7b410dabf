"""An engine that answers a random case and is killed: `python -m tests.processes.engine STATE SEED POINT CALLS`.

POINT is `before` or `after` and a call of the store, as in `after join`; CALLS of these are outlived.
"""

import sys
from pathlib import Path

from join_stage.duckdb import DuckDBEngine
from mmqjp.engine import Session
from tests.generate.strategies import random_case
from tests.support.faults import arm, kill

DOCUMENTS = 12


def main(state: str, seed: str, point: str, calls: str) -> None:
    when, name = point.split()
    script, documents = random_case(int(seed), 10, DOCUMENTS)
    engine = Session("duckdb", state=Path(state))
    arm((DuckDBEngine, name), kill, int(calls) + 1, after=when == "after")
    engine.ensure(script)
    for start in range(0, DOCUMENTS, 3):
        engine.process(documents[start : start + 3])


if __name__ == "__main__":
    main(*sys.argv[1:])
