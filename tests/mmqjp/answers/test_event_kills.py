"""Event statements that come, pause, go on and see kept documents, in an engine that is killed, or fails, between parts
of outputs: nothing is lost or twice."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from join_stage.duckdb import DuckDBEngine
from tests.generate.seeds import at_length, seeds
from tests.mmqjp.answers.test_event_worlds import FIRST_PATTERNS, SETTLE
from tests.oracle.events import EVER, Life
from tests.oracle.pattern_world import PatternWorld
from tests.processes import nursery
from tests.processes.event_life import (
    Pause,
    Process,
    Resume,
    Step,
    Subscribe,
    done,
    life,
    live,
    lived,
    names,
    opened,
)
from tests.support.faults import Injected, armed, fail
from tests.support.pattern_outputs import Told, judges, outputs_of, told


def lives(steps: Sequence[Step], named: Sequence[str]) -> Iterator[tuple[int, Life]]:
    """Yields when statements were there and not paused, by the numbers that they came as."""
    greatest: dict[str, int] = {}
    begun: dict[int, int] = {}
    came = 0
    for step in steps:
        horizon = min(greatest.values(), default=EVER[0]) - SETTLE
        match step:
            case Subscribe(places, backfill):
                begun |= dict.fromkeys(range(came, came + len(places)), EVER[0] if backfill or not came else horizon)
                came += len(places)
            case Pause(nth):
                for one in [one for one in begun if named[one] == named[nth]]:
                    yield one, (begun.pop(one), horizon)
            case Resume(nth):
                begun |= {one: horizon for one in range(came) if named[one] == named[nth] and one not in begun}
            case Process(documents):
                for document in documents:
                    greatest[document.stream] = max(document.t1, greatest.get(document.stream, EVER[0]))
    for one, since in begun.items():
        yield one, (since, EVER[1])


def wanted(found: PatternWorld, steps: Sequence[Step], named: Sequence[str]) -> tuple[Counter[Told], Counter[Told]]:
    """What there is to tell, by both orders of published events of one time."""
    places = [place for step in steps if isinstance(step, Subscribe) for place in step.places]
    parts = list(lives(steps, named))
    statements = [found.statements[places[nth]] for nth, _ in parts]
    split = PatternWorld(found.schemas, found.given, statements, dict(enumerate(part for _, part in parts)))
    one, other = (
        Counter(out for at, (nth, _) in enumerate(parts) for out in outputs_of(named[nth], at, judge))
        for judge in judges(split)
    )
    return one, other


AMID = (0, 2, FIRST_PATTERNS)
"""Seeds with outputs that have parts before a kill and behind it."""


@pytest.mark.parametrize("seed", [*seeds(0, 300), *seeds(1, 300, first=FIRST_PATTERNS)])
def test_killed_amid_instances(seed, tmp_path):
    rng = Random(seed)
    killed_at = []
    for calls in (rng.randrange(3, 6), *(rng.randrange(4) for _ in range(2 * at_length()))):
        at = f"{rng.choice(('before', 'after'))} DuckDBEngine.commit"
        nursery.run_killed(lived, tmp_path, seed, at=at, calls=calls + 1)
        with opened(tmp_path) as engine:
            killed_at.append(done(engine))
    check(seed, tmp_path, killed_at)


@pytest.mark.parametrize("seed", [*seeds(2, 1_000), *seeds(2, 1_000, first=FIRST_PATTERNS)])
def test_opened_again_after_failures(seed, tmp_path):
    rng = Random(seed)
    failed_at = []
    for calls in (rng.randrange(3, 6), *(rng.randrange(4) for _ in range(3))):
        with opened(tmp_path) as engine:
            with armed((DuckDBEngine, "commit"), fail, calls + 1), pytest.raises(Injected):
                live(engine, seed)
            failed_at.append(done(engine))
    check(seed, tmp_path, failed_at)


def check(seed: int, state: Path, killed_at: Sequence[int]) -> None:
    """Does the rest of a life. Checks all outputs."""
    found, steps = life(seed)
    with opened(state) as engine:
        live(engine, seed)
        named, outputs, late = names(engine), list(engine.outputs()), list(engine.dead_letters())
    assert not late
    assert len({one.id for one in outputs}) == len(outputs)
    got, (right, other) = Counter(map(told, outputs)), wanted(found, steps, named)
    unknown = {one.query for one in {*(right - other), *(other - right)}}
    for name in {*named} - unknown:
        own, mine = (Counter({one: some[one] for one in some if one.query == name}) for some in (got, right))
        assert own == mine, f"{name}\nmissing: {mine - own}\ntoo many: {own - mine}"
    assert seed not in AMID or any(is_amid(steps, at, one) for at in killed_at for one in right)


def is_amid(steps: Sequence[Step], at: int, one: Told) -> bool:
    before = {document.id for step in steps[:at] if isinstance(step, Process) for document in step.documents}
    return bool(before & {*one.documents}) and bool({*one.documents} - before)
