"""Shrinks operations that fail: leaves out whatever the failure does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.live.cases import script_of
from tests.live.operations import Batch, Broken, Operation, Subscribe
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script


def shrunk(
    operations: Sequence[Operation], fails: Callable[[Sequence[Operation]], bool], most: int = 150
) -> list[Operation]:
    """Fewer and shorter operations that still fail, found in at most `most` trials. The first, which opens the store,
    stays."""
    best, trials = list(operations), 0
    better = True
    while better:
        better = False
        for candidate in _smaller(best):
            trials += 1
            if trials > most:
                return best
            if fails(candidate):
                best, better = candidate, True
                break
    return best


def _smaller(operations: list[Operation]) -> Iterator[list[Operation]]:
    """Operations with something left out, largest parts first."""
    count = len(operations)
    size = count // 2
    while size:
        for start in range(count - size, 0, -size):
            yield operations[:start] + operations[start + size :]
        size //= 2
    for at, operation in enumerate(operations):
        for simpler in _simpler(operation):
            yield [*operations[:at], simpler, *operations[at + 1 :]]


def _simpler(operation: Operation) -> Iterator[Operation]:
    match operation:
        case Broken():
            yield operation.change
            for change in _simpler(operation.change):
                yield replace(operation, change=change)  # type: ignore[arg-type]  # a simpler change is one
        case Batch():
            documents = operation.documents
            for at in range(len(documents) if len(documents) > 1 else 0):
                yield Batch(documents[:at] + documents[at + 1 :])
        case Subscribe() if "DEFINE EVENT" in operation.text:
            texts = operation.text.split("; ")
            for at in range(len(texts)):
                yield replace(operation, text="; ".join(texts[:at] + texts[at + 1 :]))
        case Subscribe():
            script = parse_script(operation.text)
            texts = [to_xscl(Script((query,), script.namespaces)) for query in script.queries]
            for at in range(len(texts) if len(texts) > 1 else 0):
                yield replace(operation, text=script_of(texts[:at] + texts[at + 1 :]))


def printed(operations: Sequence[Operation]) -> str:
    """Operations as the Python that creates them."""
    return "[\n" + "".join(f"    {operation!r},\n" for operation in operations) + "]"
