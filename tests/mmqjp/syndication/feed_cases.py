"""Stores with random outputs, a reader of them, and what their feeds must hold, recounted from all outputs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from uuid import UUID

import pyarrow as pa

from feeds.documents import Document
from join_stage.store.protocol import Bounds
from mmqjp.answers.output import Output
from mmqjp.engine import Session

SIZE, NEWEST = 100, 50
"""What the design says of archives and feeds."""

QUERIES = {
    "every": "S//item->x PUBLISH every",
    "same": "S//item->x PUBLISH same",  # of one form with `every`
    "as_well": "S//item->x PUBLISH as_well",
    "titles": "SELECT p AS t FROM S//item->x[./page->p] PUBLISH titles",
    "rare": "S//item->x[./n = '3'] PUBLISH rare",
    "pairs": "S//item->x[./n->a] FOLLOWED BY {a = b, 20 s} S//item->y[./n->b] PUBLISH pairs",
    "never": "S//item->x[./n = 'none'] PUBLISH never",
}


class SessionReader:
    """A reader of a session's store that counts its questions."""

    def __init__(self, engine) -> None:
        self.engine, self.asked = engine, 0

    def select(self, sql: str, limit: int, seconds: float) -> pa.Table:
        self.asked += 1
        return self.engine.question(sql, Bounds(limit)).answer()

    def version(self) -> object:
        return self.engine.batch


@dataclass
class Clock:
    """A clock that a test moves on, in microseconds."""

    now: int = 1_784_200_000_000_000

    def __call__(self) -> int:
        return self.now


def document(number: int, random: Random) -> Document:
    fields = f"<title>Title {number}</title><item_url>https://a.example/{number}</item_url>"
    fields += f"<n>{random.randint(1, 9)}</n><page>of page {number}</page>"
    time = 1_000_000 * (number // 3)  # some at the same time: their outputs are numbered together
    return Document(f"https://a.example/f#{number}", f"<item>{fields}</item>".encode(), "S", time)


def change(engine: Session, random: Random) -> None:
    name = random.choice(list(QUERIES))
    known = engine.queries()
    if name not in known:
        engine.subscribe(QUERIES[name], backfill=random.random() < 0.3)
    else:
        random.choice((engine.pause, engine.resume, engine.unsubscribe))(name)


def process(engine: Session, first: int, count: int, random: Random) -> None:
    engine.process([document(number, random) for number in range(first, first + count)])


def filled(engine: Session, seed: int, batches: int = 8, after_each: Callable[[], object] = lambda: None) -> None:
    random, number = Random(seed), 0
    for name in random.sample(list(QUERIES), 4):
        engine.subscribe(QUERIES[name])
    for _ in range(batches):
        if random.random() < 0.5:
            change(engine, random)
        count = random.choice((1, 3, 30))
        process(engine, number, count, random)
        number += count
        after_each()


def urns(outputs: Iterable[Output]) -> list[str]:
    return [UUID(output.id).urn for output in outputs]


class Recount:
    """What feeds must hold, computed from all outputs."""

    def __init__(self, outputs: Iterable[Output]) -> None:
        self.outputs = list(outputs)
        assert [output.seq for output in self.outputs] == list(range(len(self.outputs)))
        self.archives = len(self.outputs) // SIZE

    def of(self, name: str) -> list[Output]:
        return [output for output in reversed(self.outputs) if output.query == name]

    def newest(self, name: str) -> list[str]:
        own = self.of(name)
        return urns([o for place, o in enumerate(own) if place < NEWEST or o.seq >= self.archives * SIZE])

    def archive(self, name: str, number: int) -> list[str]:
        return urns([o for o in self.of(name) if o.seq // SIZE == number])

    def chain(self, name: str) -> list[int]:
        """The numbers of the archives that are not empty, the newest first."""
        return sorted({o.seq // SIZE for o in self.of(name)} & set(range(self.archives)), reverse=True)

    def newest_archive(self, name: str) -> int | None:
        return next(iter(self.chain(name)), None)
