"""An engine on Spark that answers event queries on executors, and is killed:

`python -m tests.processes.event_engine STATE SEED POINT CALLS`. POINT is `before` or `after` a commit of the store;
CALLS of these are outlived. Each batch is processed and committed in turn.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from feeds.documents import Document
from join_stage.spark.engine import SparkEngine
from mmqjp.engine import Session
from pattern_stage.partition.kernel import SparkRunner
from tests.mmqjp.answers.test_patterns import DEFINITIONS, SECOND, batches, documents, pattern_statements, statements
from tests.oracle.event_syntax import Aggregate, Cel, Cmp, Fn, Item, Name, Next, Ref
from tests.oracle.pattern_syntax import Statement
from tests.support.faults import arm, kill

SETTLE = 6 * SECOND
DOCUMENTS = 40


def events_script(seed: int) -> str:
    """Queries, of which some can be parted, as what one of them publishes, and as what reads that."""
    made: dict[str, Statement] = {**statements(Random(seed)), **pattern_statements(Random(seed))}
    same = Cmp("=", Ref("a"), Ref("b"))
    made["parted"] = Cel(Next(Name("A"), same, Name("B")), publish="AB")
    made["counted"] = Cel(Aggregate((Item(Fn("count"), "n"),), ("a",), None, Name("AB")), publish="N")
    made["apart"] = Cel(Next(Name("N"), Cmp("=", Ref("a"), Ref("c")), Name("C")))
    return DEFINITIONS + ";" + "; ".join(one.text() for one in made.values())


def given(seed: int) -> list[list[Document]]:
    """Documents in batches, no later than event queries wait for."""
    rng = Random(seed)
    arriving = batches(rng, documents(rng, DOCUMENTS), SETTLE)
    return [[Document(one.id, one.xml, one.stream, (one.t0, one.t1)) for one in batch] for batch in arriving]


def main(state: str, seed: str, point: str, calls: str) -> None:
    least = SparkRunner.__init__.__kwdefaults__
    assert least is not None
    least["least"] = 0
    engine = Session("spark", state=Path(state), settle=SETTLE, patterns="executors", quiet=True)
    engine.subscribe(events_script(int(seed)))
    arm((SparkEngine, "commit"), kill, int(calls) + 1, after=point == "after")
    for batch in given(int(seed)):
        engine.process(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
