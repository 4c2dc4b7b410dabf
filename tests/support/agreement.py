"""Compares an engine with the oracle: the same script over the same documents, row by row."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import comparable, evaluate
from tests.oracle.query_answers import evaluate_in_steps
from xscl.syntax import Script


@dataclass(frozen=True)
class Delivery:
    """How documents arrive: `order` is the seed of a shuffle (None: as given), `batch` the number of documents in a
    batch."""

    order: int | None
    batch: int


def as_row(output: Output) -> OutputRow:
    return OutputRow(
        output.query, output.t0, output.t1, output.documents, output.streams, tuple(output.nodes.items()), output.xml
    )


def arranged(documents: Sequence[Document], delivery: Delivery) -> list[list[Document]]:
    """The documents in batches. The first of several documents with one id stays first, because that one is kept."""
    first: dict[tuple[str, str], Document] = {}
    for document in documents:
        first.setdefault((document.stream, document.id), document)
    ordered = list(first.values())
    if delivery.order is not None:
        random.Random(delivery.order).shuffle(ordered)
    ordered += [d for d in documents if first[d.stream, d.id] is not d]
    return [ordered[i : i + delivery.batch] for i in range(0, len(ordered), delivery.batch)]


def assert_agrees(engine: Session, script: Script, documents: Sequence[Document], delivery: Delivery) -> int:
    """Asserts that the engine gives the oracle's rows. Returns how many there are."""
    batches = arranged(documents, delivery)
    once = any(query.once for query in script.queries)  # only then does it matter what comes together
    expected = comparable(evaluate_in_steps(script, batches) if once else evaluate(script, documents))
    engine.ensure(script)
    assert comparable(as_row(output) for batch in batches for output in engine.process(batch)) == expected
    return len(expected)
