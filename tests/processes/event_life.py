"""An engine in whose life event statements come, pause, go on and see what is kept, and which is killed. Each step is
committed together with its number, and a process goes on behind the last one."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from feeds.documents import Document
from mmqjp.answers import events
from mmqjp.engine import Session
from mmqjp.queries.changes import MetadataFor
from mmqjp.tables.schema import CommitMetadata
from tests.generate.documents import SECOND, chance
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, in_order, script, some_world
from tests.oracle.event_syntax import Cel, Name
from tests.oracle.pattern_world import PatternWorld

DONE = "test: done"
"""The setting that has the number of steps that are done."""


class Subscribe(NamedTuple):
    places: tuple[int, ...]
    backfill: bool


class Pause(NamedTuple):
    """Pauses what is under the name of the statement that came as the n-th."""

    nth: int


class Resume(NamedTuple):
    nth: int


class Process(NamedTuple):
    documents: tuple[Document, ...]


Step = Subscribe | Pause | Resume | Process


def life(seed: int) -> tuple[PatternWorld, Sequence[Step]]:
    """A world, and what happens in it. All time before the first documents is over before anything is paused."""
    rng, made = Random(seed), some_world(seed)
    plain = [Cel(Name(name)) for name in made.given]
    found = PatternWorld(made.schemas, made.given, [*plain, *made.statements])
    return found, list(_steps(rng, found, len(plain)))


def _steps(rng: Random, found: PatternWorld, plain: int) -> Iterator[Step]:
    places = in_order(found)
    early = [*range(plain), *(place for place in places[: len(places) // 2] if place >= plain)]
    late = [place for place in places if place not in early]
    arriving = documents(found)
    begin, end = min(t1 for t1, _ in arriving) - SECOND, 10**6 * SECOND
    yield Subscribe(tuple(early), backfill=False)
    yield Process(_everywhere(found, begin))
    came, paused = len(early), set[int]()
    for batch in batches(rng, arriving):
        if late and chance(rng, 40):
            count = rng.randint(1, 3)
            yield Subscribe(tuple(late[:count]), backfill=chance(rng, 60))
            came, late = came + len(late[:count]), late[count:]
        if chance(rng, 40):
            nth = rng.randrange(plain, came)
            yield Resume(nth) if nth in paused else Pause(nth)
            paused ^= {nth}
        yield Process(tuple(batch))
    if late:
        yield Subscribe(tuple(late), backfill=True)
    for nth in sorted(paused)[::2]:
        yield Resume(nth)
    yield Process(_everywhere(found, end))


def _everywhere(found: PatternWorld, time: int) -> tuple[Document, ...]:
    return tuple(Document(f"{time} {name}", "<none/>", f"documents_{name}", (time, time)) for name in found.given)


def opened(state: Path) -> Session:
    events.SNAPSHOT_EVERY = 4
    return Session("duckdb", state=state, settle=SETTLE, quiet=True)


def done(engine: Session) -> int:
    return int(engine.ledger.setting(DONE) or 0)


def names(engine: Session) -> list[str]:
    return [engine.registry.subscriptions[qid].name for qid in sorted(engine.registry.subscriptions)]


def with_it(metadata: CommitMetadata) -> MetadataFor:
    return lambda _: metadata


def live(engine: Session, seed: int) -> None:
    found, steps = life(seed)
    definitions = script(PatternWorld(found.schemas, found.given, []))
    for number in range(done(engine), len(steps)):
        metadata = CommitMetadata(settings={DONE: str(number + 1)})
        match steps[number]:
            case Subscribe(places, backfill):
                texts = [found.statements[place].text() for place in places]
                text = "; ".join(texts if number else [definitions, *texts])
                with engine.committing(with_it(metadata)):
                    engine.subscribe(text, add=True, backfill=backfill)
            case Pause(nth):
                with engine.committing(with_it(metadata)):
                    engine.pause(names(engine)[nth])
            case Resume(nth):
                with engine.committing(with_it(metadata)):
                    engine.resume(names(engine)[nth])
            case Process(some):
                engine.process(some, metadata)


def lived(state: Path, seed: int) -> None:
    live(opened(state), seed)
