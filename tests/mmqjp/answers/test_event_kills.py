"""Event statements wherever they are answered, in engines that are killed, or fail, between parts of outputs."""

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from common.errors import InvalidValue
from join_stage.duckdb import DuckDBEngine
from mmqjp.answers.events_run import PLACES, check_place
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from pattern_stage.partition.kernel import SparkRunner
from tests.generate.seeds import at_length, seeds
from tests.mmqjp.answers.test_event_worlds import FIRST_PATTERNS, SETTLE, ends, script
from tests.oracle.events import EVER, Life
from tests.oracle.pattern_world import PatternWorld
from tests.processes import event_engine, event_life, nursery
from tests.processes.event_engine import BATCHES, WORLD
from tests.processes.event_life import done, opened
from tests.support.faults import Injected, armed, fail
from tests.support.pattern_outputs import Told, judges, outputs_of, told


def lives(steps: Sequence[event_life.Step], named: Sequence[str]) -> Iterator[tuple[int, Life]]:
    """Yields when statements were there and not paused, by the numbers that they came as."""
    greatest: dict[str, int] = {}
    begun: dict[int, int] = {}
    came = 0
    for step in steps:
        horizon = min(greatest.values(), default=EVER[0]) - SETTLE
        match step:
            case event_life.Subscribe(places, backfill):
                begun |= dict.fromkeys(range(came, came + len(places)), EVER[0] if backfill or not came else horizon)
                came += len(places)
            case event_life.Pause(nth):
                for one in [one for one in begun if named[one] == named[nth]]:
                    yield one, (begun.pop(one), horizon)
            case event_life.Resume(nth):
                begun |= {one: horizon for one in range(came) if named[one] == named[nth] and one not in begun}
            case event_life.Process(documents):
                for document in documents:
                    greatest[document.stream] = max(document.t1, greatest.get(document.stream, EVER[0]))
    for one, since in begun.items():
        yield one, (since, EVER[1])


def wanted(
    found: PatternWorld, steps: Sequence[event_life.Step], named: Sequence[str]
) -> tuple[Counter[Told], Counter[Told]]:
    places = [place for step in steps if isinstance(step, event_life.Subscribe) for place in step.places]
    parts = list(lives(steps, named))
    statements = [found.statements[places[nth]] for nth, _ in parts]
    split = PatternWorld(found.schemas, found.given, statements, dict(enumerate(part for _, part in parts)))
    one, other = (
        Counter(out for at, (nth, _) in enumerate(parts) for out in outputs_of(named[nth], at, judge))
        for judge in judges(split)
    )
    return one, other


@pytest.mark.parametrize("seed", [*seeds(0, 300), *seeds(1, 300, first=FIRST_PATTERNS)])
def test_killed_amid_instances(seed, tmp_path):
    rng = Random(seed)
    killed_at = []
    for calls in (rng.randrange(3, 6), *(rng.randrange(4) for _ in range(2 * at_length()))):
        at = f"{rng.choice(('before', 'after'))} DuckDBEngine.commit"
        nursery.run_killed(event_life.lived, tmp_path, seed, at=at, calls=calls + 1)
        with opened(tmp_path) as engine:
            killed_at.append(done(engine))
    check(seed, tmp_path, killed_at)


@pytest.mark.parametrize("seed", [*seeds(1, 1_000), *seeds(1, 1_000, first=FIRST_PATTERNS)])
def test_opened_again_after_failures(seed, tmp_path):
    rng = Random(seed)
    failed_at = []
    for calls in (rng.randrange(3, 6), *(rng.randrange(4) for _ in range(3))):
        with opened(tmp_path) as engine:
            # The life of a seed that nobody chose may be over before the fault.
            failed = suppress(Injected) if at_length() else pytest.raises(Injected)
            with armed((DuckDBEngine, "commit"), fail, calls + 1), failed:
                event_life.live(engine, seed)
            failed_at.append(done(engine))
    check(seed, tmp_path, failed_at)


def check(seed: int, state: Path, killed_at: Sequence[int]) -> None:
    found, steps = event_life.life(seed)
    with opened(state) as engine:
        event_life.live(engine, seed)
        named, outputs, late = event_life.names(engine), list(engine.outputs()), list(engine.dead_letters())
    assert not late
    assert len({one.id for one in outputs}) == len(outputs)
    got, (right, other) = Counter(map(told, outputs)), wanted(found, steps, named)
    unknown = {one.query for one in {*(right - other), *(other - right)}}
    for name in {*named} - unknown:
        own, mine = (Counter({one: some[one] for one in some if one.query == name}) for some in (got, right))
        assert own == mine, f"{name}\nmissing: {mine - own}\ntoo many: {own - mine}"
    has_some_amid = seed in (0, 2, FIRST_PATTERNS)
    assert not has_some_amid or any(is_amid(steps, at, one) for at in killed_at for one in right)


def is_amid(steps: Sequence[event_life.Step], at: int, one: Told) -> bool:
    before = {document.id for step in steps[:at] if isinstance(step, event_life.Process) for document in step.documents}
    return bool(before & {*one.documents}) and bool({*one.documents} - before)


Listed = list[tuple[int, str, str, tuple[str, ...]]]


def listed(outputs: Iterable[Output]) -> Listed:
    return [(one.seq, one.id, one.xml, one.documents) for one in outputs]


def ended(engine: Session) -> Listed:
    engine.process(ends(WORLD))
    return listed(engine.outputs())


@pytest.fixture(autouse=True)
def few_events_are_worth_a_job(monkeypatch):
    defaults = SparkRunner.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "least", 0)


@pytest.mark.soak
@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_amid_a_batch(point, spark, tmp_path):
    killed = nursery.run(event_engine.live, tmp_path, point, 6)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = 5 if point == "before" else 6
    for place, some in (("executors", BATCHES[done : done + 2]), ("driver", BATCHES[done + 2 :])):
        with Session(spark, state=tmp_path, settle=SETTLE, patterns=place, quiet=True) as engine:
            assert engine.queries()
            for batch in some:
                engine.process(batch)
    with Session(spark, state=tmp_path, settle=SETTLE, patterns="executors", quiet=True) as engine:
        found = ended(engine)
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        engine.subscribe(script(WORLD), add=True)
        for batch in BATCHES:
            engine.process(batch)
        assert found == ended(engine) != []


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("duckdb", "sql"),
        pytest.param("spark", "sql", marks=[pytest.mark.spark, pytest.mark.soak]),
        pytest.param("spark", "executors", marks=pytest.mark.spark),
    ],
)
def test_a_finite_run(kind, place, request):
    engine = request.getfixturevalue("spark") if kind == "spark" else kind
    found = []
    for one, patterns in (("duckdb", "driver"), (engine, place)):
        with Session(one, settle=None, patterns=patterns, quiet=True) as opened:
            opened.subscribe(script(WORLD), add=True)
            for number, batch in enumerate(BATCHES):
                if number == 2:
                    with pytest.raises(Injected):
                        opened.process(batch, fail)
                opened.process(batch)
            found.append(listed(opened.finish()))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("place", PLACES)
def test_places_on_spark(place):
    check_place(place, on_spark=True, lasts=False, settle=None)


def test_places_that_cannot_be():
    for place, lasts, settle, message in (
        ("executors", False, None, "only Spark has executors"),
        ("sql", True, None, "keeps no state"),
        ("sql", False, 5, "settle be INF"),
        ("moon", False, None, "one of driver, executors, sql, not 'moon'"),
    ):
        with pytest.raises(InvalidValue, match=message):
            check_place(place, on_spark=False, lasts=lasts, settle=settle)
    with pytest.raises(InvalidValue, match="only Spark has executors"):
        Session("duckdb", patterns="executors")
