"""An engine on Spark that answers event queries on executors, and is killed."""

from pathlib import Path
from random import Random

from join_stage.spark.engine import SparkEngine
from mmqjp.engine import Session
from pattern_stage.partition.kernel import SparkRunner
from tests.generate.pattern_worlds import pattern_world
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, script
from tests.support.faults import arm, kill

WORLD = pattern_world(7, most=16)
BATCHES = list(batches(Random(7), documents(WORLD)))


def live(state: Path, when: str, calls: int) -> None:
    """Is killed before or after the n-th commit. Each batch is processed and committed in turn."""
    least = SparkRunner.__init__.__kwdefaults__
    assert least is not None
    least["least"] = 0
    engine = Session("spark", state=state, settle=SETTLE, patterns="executors", quiet=True)
    engine.subscribe(script(WORLD), add=True)
    arm((SparkEngine, "commit"), kill, calls, after=when == "after")
    for batch in BATCHES:
        engine.process(batch)
