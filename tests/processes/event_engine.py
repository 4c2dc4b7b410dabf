"""An engine on Spark that answers event queries on executors, and is killed."""

from pathlib import Path
from random import Random

from feeds.documents import Document
from join_stage.spark.engine import SparkEngine
from mmqjp.engine import Session
from pattern_stage.partition.kernel import SparkRunner
from tests.generate.documents import SECOND
from tests.mmqjp.answers.event_world import DEFINITIONS, batches, documents, pattern_statements, statements
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


def live(state: Path, seed: int, when: str, calls: int) -> None:
    """Is killed before or after the n-th commit. Each batch is processed and committed in turn."""
    least = SparkRunner.__init__.__kwdefaults__
    assert least is not None
    least["least"] = 0
    engine = Session("spark", state=state, settle=SETTLE, patterns="executors", quiet=True)
    engine.subscribe(events_script(seed))
    arm((SparkEngine, "commit"), kill, calls, after=when == "after")
    for batch in given(seed):
        engine.process(batch)
