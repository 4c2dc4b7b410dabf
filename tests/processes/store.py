"""A process that takes a store some steps further: `python -m tests.processes.store ENGINE STATE PLAN`.

The steps come as JSON on standard input: `["subscribe", text]`, which backfills, or `["process", [[id, xml], ...]]`.
"""

import json
import sys

from feeds.documents import Document
from mmqjp.engine import CoreEngine

START = 1_767_225_600_000_000


def take(engine: CoreEngine, steps: list[tuple[str, str | list[tuple[str, str]]]]) -> None:
    for do, what in steps:
        if isinstance(what, str):
            assert do == "subscribe"
            engine.subscribe(what, backfill=True)
        else:
            engine.process([Document(name, xml, "S", START) for name, xml in what])


if __name__ == "__main__":
    name, state, plan = sys.argv[1:]
    with CoreEngine(name, state=state, plan=plan, now=lambda: START) as opened:
        take(opened, json.load(sys.stdin))
