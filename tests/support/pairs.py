"""A query that pairs documents of equal text, documents for it, and the pairs that it finds."""

from collections.abc import Sequence

from feeds.documents import Document
from mmqjp.answers.output import Output

PAIRS = "S/a->x FOLLOWED BY {x = y, 10} S/a->y"


def doc(number: int, text: str = "v", seconds: float | None = None, stream: str = "S") -> Document:
    time = number if seconds is None else seconds
    return Document(f"d{number}", f"<a>{text}</a>", stream, int(time * 1_000_000))


def pairs(outputs: Sequence[Output]) -> list[tuple[str, ...]]:
    return [output.documents for output in outputs]
