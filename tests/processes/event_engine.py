"""An engine on Spark that answers event queries on executors, and is killed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from feeds.documents import Document
from join_stage.spark.engine import SparkEngine
from mmqjp.engine import Session
from pattern_stage.partition.kernel import SparkRunner
from tests.support.faults import arm, kill


def live(state: Path, settle: int, script: str, batches: Iterable[Sequence[Document]], when: str, calls: int) -> None:
    """Is killed before or after the n-th commit. Each batch is processed and committed in turn."""
    least = SparkRunner.__init__.__kwdefaults__
    assert least is not None
    least["least"] = 0
    engine = Session("spark", state=state, settle=settle, patterns="executors", quiet=True)
    engine.subscribe(script, add=True)
    arm((SparkEngine, "commit"), kill, calls, after=when == "after")
    for batch in batches:
        engine.process(batch)
