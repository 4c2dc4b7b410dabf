"""No statement takes more than the limits say: it is reported at the same epoch in any intervals and by any rules,
before the memory is taken, and others go on as if it had never been there."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import pytest

from common.limits import UNLIMITED, Excess, LimitName, Quota
from pattern_stage import operators
from pattern_stage.pattern import sets
from tests.generate.documents import SECOND, chance
from tests.generate.events import LENGTH
from tests.generate.seeds import seeds
from tests.oracle import event_syntax as cel
from tests.oracle.cases import written
from tests.oracle.event_values import Value, holds
from tests.oracle.events import EVER, Event, Events, Iteration, World, before, chosen, event, iterated, pair
from tests.oracle.pattern_syntax import Near, Pattern, Statement
from tests.oracle.pattern_world import PatternWorld
from tests.pattern_stage.test_patterns import END, patterns, to_the_end
from tests.support.event_agreement import Run, Runner, expected, random_run


def with_limits(world: World, run: Run, limits: Quota) -> Runner:
    runner = Runner(world, run, limits=limits)
    runner.results()
    return runner


# ---------------------------------------------------------------- NEXT, FOLD and AGGREGATE

SAME = cel.Cmp("=", cel.Ref("k", "$1"), cel.Ref("k", "$2"))
TOTAL = cel.Item(cel.Op("+", cel.Ref("x", "$"), cel.Ref("y", "$2")), "x")
NAMES = ("A", "B", "C")


def a_world(rng: Random) -> World:
    """A few statements over three streams of equal attributes, none of which is NULL: that nothing can match is not
    seen before."""
    schemas = {name: {"k": "string", "x": "number", "y": "number"} for name in NAMES}
    given: dict[str, list[Event]] = {name: [] for name in NAMES}
    for name in NAMES:
        for number in range(rng.randint(4, 14)):
            t1 = rng.randint(0, LENGTH) * SECOND
            t0 = max(0, t1 - rng.choice((0, 0, 0, 1, 3)) * SECOND)
            k, x, y = rng.choice("uv"), rng.choice((0, 1, 2)), rng.choice((0, 1, 2))
            given[name].append(event({"k": k, "x": x, "y": y}, t0, t1, [(name, number)]))
    return World(schemas, given, [a_statement(rng) for _ in range(5)])  # type: ignore[arg-type]  # kinds


def a_statement(rng: Random) -> cel.Cel:
    within = cel.Window(str(rng.choice((2, 4, 7, 30)))) if chance(rng, 70) else None
    stream = a_stream(rng, 2)
    if chance(rng, 20):
        stream = cel.Filter(cel.Cmp(">", cel.Ref("x"), cel.Num("0")), cel.Cel(stream, None, within))
    return cel.Cel(stream, None, within)


def a_stream(rng: Random, depth: int) -> cel.Stream:
    condition: cel.Cond | None = rng.choice((SAME, SAME, None))
    match rng.choice(("next", "next", "fold", "aggregate")):
        case "next":
            left = a_stream(rng, depth - 1) if depth > 1 and chance(rng, 30) else a_leaf(rng)
            if isinstance(left, cel.Aggregate):
                left = a_leaf(rng)
            return cel.Next(left, condition, a_leaf(rng), chance(rng, 40))
        case "fold":
            rises = cel.Cmp(">=", cel.Ref("y", "$2"), cel.Ref("y", "$")) if chance(rng, 40) else None
            right = cel.Cel(a_leaf(rng), (cel.Item(cel.Ref("k")), cel.Item(cel.Ref("y"))))
            return cel.Fold(a_leaf(rng), condition, rises, rng.choice(((), (TOTAL,))), right)
    over = cel.Window(str(rng.choice((2, 5, 9)))) if chance(rng, 80) else None
    items = cel.Item(cel.Fn("count"), "n"), cel.Item(cel.Fn("max", (cel.Ref("x"),)), "x")
    return cel.Aggregate(items, rng.choice((("k",), ())), over, a_leaf(rng), over is not None and chance(rng, 40))


def a_leaf(rng: Random) -> cel.Stream:
    name = cel.Name(rng.choice(NAMES))
    if chance(rng, 25):
        return cel.Union(name, cel.Name(rng.choice(NAMES)))
    return cel.Filter(cel.Cmp(">=", cel.Ref("x"), cel.Num("1")), name) if chance(rng, 30) else name


# ---------------------------------------------------------------- the first excess, by the definitions


class Counted:
    """What each operator of a statement has waiting after each epoch, what it finds in it, and what it compares for
    that. `hashed`: events are compared only if they are equal where the condition says so."""

    def __init__(self, world: World, *, hashed: bool) -> None:
        self._world, self._hashed = world, hashed
        self._epochs = sorted({one.t1 for found in world.given.values() for one in found})

    def excesses(self, statement: cel.Cel, limits: Quota) -> list[Excess]:
        """All at the first time that has any, the one that counts first."""
        found = sorted(set(self._of(statement, None, limits)))
        return [one for one in found if one.at == found[0].at]

    def _events(self, stream: cel.Stream, within: int | None) -> Events:
        return self._world._of(stream, within, EVER)

    def _of(self, stream: cel.Stream, within: int | None, limits: Quota) -> Iterator[Excess]:
        match stream:
            case cel.Cel():
                own = None if stream.within is None else stream.within.us
                least = min((bound for bound in (within, own) if bound is not None), default=None)
                yield from self._of(stream.stream, least, limits)
            case cel.Filter():
                yield from self._of(stream.source, within, limits)
            case cel.Union() | cel.Next() | cel.Fold():
                yield from self._of(stream.left, within, limits)
                yield from self._of(stream.right, within, limits)
            case cel.Aggregate():
                yield from self._of(stream.source, within, limits)
        if isinstance(stream, cel.Next | cel.Fold | cel.Aggregate):
            found = Counter(one.t1 for one in self._events(stream, within))
            yield from (Excess(time, "matches") for time, count in found.items() if count > limits.matches)
            waits = Counter[int]()
            for begin, end in self._lives(stream, within):
                waits.update(time for time in self._epochs if begin <= time < end)
            yield from (Excess(time, "partial") for time, count in waits.items() if count > limits.partial)
            compared = Counter(self._comparisons(stream, within))
            yield from (Excess(time, "work") for time, count in compared.items() if count > limits.work)

    def _comparisons(self, stream: cel.Next | cel.Fold | cel.Aggregate, within: int | None) -> Iterator[int]:
        """The time of each comparison with a later event: all up to the first partners, or to the end of the window."""
        if isinstance(stream, cel.Aggregate):
            return
        right = self._events(stream.right, within)
        if isinstance(stream, cel.Next) and stream.latest:
            for b in right:
                lefts = [a for a in self._events(stream.left, within) if before(a, b)]
                lefts = [a for a in lefts if within is None or b.t1 - a.t1 <= within]
                found = max((a.t1 for a in lefts if holds(stream.cond, pair(a, b))), default=-1)
                hashed = [a for a in lefts if not (self._hashed and stream.cond == SAME) or holds(SAME, pair(a, b))]
                yield from (b.t1 for a in hashed if a.t1 >= found)
            return
        condition = stream.cond if isinstance(stream, cel.Next) else stream.chooses
        for begin, end, one, first in self._waiting(stream, within):
            for b in right:
                if begin < b.t1 <= min(end, first.t0 + (EVER[1] if within is None else within)):
                    own = dict(one)
                    if not (self._hashed and condition == SAME) or own["k"] == b.values["k"]:
                        yield b.t1

    def _lives(self, stream: cel.Next | cel.Fold | cel.Aggregate, within: int | None) -> Iterator[tuple[int, int]]:
        """From when on, and until when, each thing waits."""
        if isinstance(stream, cel.Aggregate) and stream.session:
            for session in self._events(stream, within):
                for one in self._events(stream.source, within):
                    if one.parts <= session.parts:
                        yield one.t1, session.t1
            return
        if isinstance(stream, cel.Next) and stream.latest:
            for one in self._events(stream.left, within):
                yield one.t1, EVER[1] if within is None else one.t1 + within
            return
        if isinstance(stream, cel.Aggregate):
            for one in self._events(stream.source, within) if stream.over else ():
                assert stream.over is not None
                yield one.t1, one.t1 + stream.over.us - 1  # a window ends after it
            return
        bound = EVER[1] if within is None else within
        for begin, end, _, first in self._waiting(stream, within):
            yield begin, min(end, first.t0 + bound)

    def _waiting(
        self, stream: cel.Next | cel.Fold, within: int | None
    ) -> Iterator[tuple[int, int, Iterable[tuple[str, Value]], Event]]:
        """From when on and until which partners each instance waits, its values, and what it began with."""
        left, right = self._events(stream.left, within), self._events(stream.right, within)
        bound = EVER[1] if within is None else within
        if isinstance(stream, cel.Next):
            for a in left:
                partners = (b.t1 for b in right if before(a, b) and holds(stream.cond, pair(a, b)))
                yield a.t1, min(partners, default=EVER[1]), a.values.items(), a
            return
        current = {Iteration(a, a, a.attributes) for a in left}
        while current:
            for now in current:
                taken = min((b.t1 for b, _ in chosen(stream, now, right)), default=EVER[1])
                yield now.t1, taken, now.values, now.first
            longer = {more for one in current for more in iterated(stream, one, right)}
            current = {more for more in longer if more.t1 - more.first.t0 <= bound}


@pytest.mark.parametrize("seed", seeds(8, 3_000))
def test_statements_tell_what_they_have_before_they_exceed_a_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(operators, "FOUND", 3)
    monkeypatch.setattr(operators, "COMPARED", (5, 1 << 26)[seed // 2 % 2])
    rng = Random(seed)
    world = a_world(rng)
    limits = Quota(rng.choice((1, 3, 6, 1_000)), rng.choice((1, 2, 4, 1_000)), rng.choice((2, 9, 20, 1_000)))
    run = to_the_end(random_run(rng, 0, LENGTH))
    runner, counted = with_limits(world, run, limits), Counted(world, hashed=run.hashed)
    for place, statement in enumerate(world.statements):
        excesses: list[Excess | None] = [*counted.excesses(statement, limits)] or [None]
        found = runner.exceeded.get(place)
        # What stops for its comparisons has not found all its matches.
        assert found in excesses[: len(excesses) if operators.COMPARED == 5 else 1], (statement.text(), limits)
        until = found.at if found else 2**62
        assert runner.found_by(place) == {one for one in world.results(place) if one.t1 < until}, statement.text()


# ---------------------------------------------------------------- PATTERN


def is_plain(one: Statement) -> bool:
    """Whether what is counted is what is told: nothing is asked of a match once it is found."""
    if isinstance(one, Near):
        return not one.apart
    assert isinstance(one, Pattern)
    return not (one.apart or one.having or one.absent)


@pytest.mark.parametrize("kind", ["run", "near"])
@pytest.mark.parametrize("seed", seeds(3, 1_000, first=60_000))
def test_a_statement_with_too_many_matches_at_once_tells_what_it_had_before(seed, kind):
    world = patterns(seed, kind)
    rng = Random(seed)
    run = to_the_end(random_run(rng, 0, LENGTH))
    limits = Quota(matches=rng.choice((0, 1, 2, 5)))
    runner = with_limits(world, run, limits)
    judge = PatternWorld(world.schemas, world.given, world.statements, order=runner.order())
    for place, statement in enumerate(world.statements):
        right = expected(judge, place)
        at_once = Counter(known for _, known, _, _ in right)
        over = [known for known, count in at_once.items() if count > limits.matches]
        first = min(over, default=END)
        found = runner.exceeded.get(place)
        if is_plain(statement):
            assert found == (Excess(first, "matches") if over else None), statement.text()
        until = found.at if found else END
        assert until <= first
        assert set(runner.told[place]) == {one for one in right if one[1] < until}, statement.text()


@pytest.mark.parametrize("kind", ["run", "set", "near"])
@pytest.mark.parametrize("seed", seeds(3, 1_000, first=70_000))
def test_what_waits_is_limited_at_the_same_epoch_in_any_intervals(seed, kind, monkeypatch):
    world = patterns(seed, kind)
    rng = Random(seed)
    monkeypatch.setattr("common.limits.BLOCK", rng.choice((2, 5, 10_000)))
    limits = Quota(
        *(rng.choice((0, 2, 5, 9, 1_000)), rng.choice((3, 1_000)), rng.choice((4, 50, 250, 10**6))),
        work_of_block=rng.choice((9, 50, 400, 2_000, 10**6)),
    )
    at_once = with_limits(world, Run((END,)), limits)
    judge = PatternWorld(world.schemas, world.given, world.statements, order=at_once.order())
    run = replace(to_the_end(random_run(rng, 0, LENGTH)), rules=Run((END,)).rules)
    in_parts = with_limits(world, run, limits)
    assert in_parts.exceeded == at_once.exceeded
    for place in range(len(world.statements)):
        assert set(in_parts.told[place]) == set(at_once.told[place])
        until = at_once.exceeded[place].at if place in at_once.exceeded else END
        assert set(at_once.told[place]) == {one for one in expected(judge, place) if one[1] < until}


# ---------------------------------------------------------------- what would take all memory

ANY = "PATTERN SEQ({}) WHERE skip_till_any_match {{{}}} WITHIN 1000 s"
RISES, ALL = "a[i].x > sum(a[..i-1].x)", "a[1].x >= 0"
ONES = [(time, 1.0) for time in range(60)]
EXPLOSIONS: dict[str, tuple[str, list[tuple[int, float]]]] = {
    "all of one time with all of the next": ("FROM E NEXT E", [(time, 1) for time in (0, 1) for _ in range(3_000)]),
    "a run for each subset": (
        "FROM E FOLD{,, $.x + $2.y AS x} (SELECT y FROM E)",
        [(time, 2.0**time * (1 + place)) for time in range(40) for place in range(2)],
    ),
    "texts that double": (
        'FROM (SELECT x, concat(x, "") AS t FROM E) FOLD{,, concat($.t, $.t) AS t} (SELECT x FROM E)',
        [(time, 1) for time in range(40)],
    ),
    "long texts made of each event of a time": (
        'FROM (SELECT x, concat(x, "") AS t FROM E) FOLD{,, concat($.t, $2.x, $.t) AS t} (SELECT x FROM E)',
        [(time, 1.0) for time in range(9)] + [(9, float(place)) for place in range(100)],
    ),
    "all of one time before all of the next": (
        "FROM E LATEST BEFORE E",
        [(time, 1) for time in (0, 1) for _ in range(3_000)],
    ),
    "what waits for ever": ("FROM E NEXT{$1.x < $2.x} E", [(time, -time) for time in range(3_000)]),
    "one run for each subset": (ANY.format("E+ a[], E b", RISES), [(time, 2.0**time) for time in range(60)]),
    "one match for each subset": (ANY.format("E+ a[], E b", ALL), ONES),
    "ways from each event to all before": (ANY.format("E+ a[], E b, E+ c[]", ALL), [(time, 1) for time in range(100)]),
    "many events at once": (
        ANY.format("E+ a[], E b", RISES),
        [(time, 2.0**time) for time in range(12)] + [(13, 2.0**13)] * 100,
    ),
    "sets": ("PATTERN SEQ(SET(E+ a[], E b)) WITHIN 1000 s", ONES),
    "the greatest set": (
        "PATTERN SEQ(E b, SET(E+ a[])) WHERE {a[i].x > a[i-1].x} WITHIN 1000 s EARLIEST MAXIMAL",
        [(time, time) for time in range(60)],
    ),
    "sets that are all tried for nothing": (
        "PATTERN SEQ(SET(E a, E b, E c, E d)) WHERE {a.x + b.x + c.x + d.x < 0} WITHIN 1000 s",
        ONES[:30],
    ),
    "each event in any of three greatest sets": (
        "PATTERN SEQ(SET(E+ a[], E+ b[], E+ c[])) WITHIN 1000 s EARLIEST MAXIMAL",
        ONES[:9],
    ),
    "chains that lack letters": ("PATTERN SEQ(E+, E) ERRORS <= 1 WITHIN 1000 s", ONES),
}


@pytest.mark.parametrize("name", EXPLOSIONS)
def test_what_would_take_all_memory_is_reported_before_it_does(name, monkeypatch):
    monkeypatch.setattr(operators, "FOUND", 1 << 16)
    statement, values = EXPLOSIONS[name]
    given = [("E", "x:number y:number", " | ".join(f"{x} {x} @{time}" for time, x in values))]
    is_pattern = statement.startswith("PATTERN")
    quiet = "FROM FILTER{x < 0 - 2998} E"
    if is_pattern:
        quiet = "PATTERN SEQ(E a, E b) WHERE strict_contiguity {b.x > 0} WITHIN 2 s"
    run, limits = Run((100_000 * SECOND,)), Quota(200, 150, 40_000) if is_pattern else Quota(1_000, 2_000)
    tracemalloc.start()
    try:
        runner = with_limits(written([statement, quiet], given), run, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert runner.exceeded.keys() == {0}
    assert peak < (3_000_000 if is_pattern else 100_000_000)
    alone = with_limits(written([quiet], given), run, UNLIMITED)
    assert runner.told[1] == alone.told[0] and runner.found_by(1) == alone.found_by(0)


@pytest.mark.parametrize("seed", seeds(2, 400))
def test_texts_that_fold_makes_count_at_the_same_epoch_in_any_intervals(seed, monkeypatch):
    rng = Random(seed)
    given = [("E", "x:number", " | ".join(f"{rng.randint(1, 9)} @{rng.randint(0, LENGTH)}" for _ in range(25)))]
    made = "FROM (SELECT x, 'ab' AS t FROM E) FOLD{{{}, GAP <= {} s, concat($.t, $2.x, $.t) AS t}} (SELECT x FROM E)"
    texts = [made.format(chosen, gap).replace("'", '"') for chosen, gap in (("", 9), ("$2.x >= $.x", 99))]
    limits = Quota(rng.choice((30, 300, 10_000)), rng.choice((30, 300, 10_000)))
    world = written([*texts, "FROM E FOLD{, $2.x > $.x, $2.x AS x} (SELECT x FROM E)"], given)
    plain = with_limits(world, Run((END,)), limits)
    monkeypatch.setattr(operators, "FOUND", rng.choice((3, 1 << 22)))
    run = replace(to_the_end(random_run(rng, 0, LENGTH)), rules=Run((END,)).rules)
    others = with_limits(world, run, limits)
    assert others.exceeded == plain.exceeded
    assert [others.found_by(place) for place in range(3)] == [plain.found_by(place) for place in range(3)]
    assert 0 in plain.exceeded or limits.matches == 10_000


def test_a_search_for_sets_ends_within_its_steps_of_all_times(monkeypatch):
    """Five variables, of which each time tries more: no time has too many, and all together take hours."""
    events, spend = 0, sets.KeptSets.spend

    def counted(store: sets.KeptSets, rows: int, some: int, time: int) -> int:
        nonlocal events
        events += some
        return spend(store, rows, some, time)

    monkeypatch.setattr(sets.KeptSets, "spend", counted)
    text = "PATTERN SEQ(SET(E a, E b, E c, E d, E e)) WHERE {{ {} }} WITHIN 1000 s{}"
    given = [("E", "x:number", " | ".join(f"1 @{t}" for t in range(60)))]
    cuts = tuple(time * SECOND for time in range(1, 61))
    for condition, mode in (("a.x + b.x + c.x + d.x + e.x < 0", ""), ("a.x > b.x", " EARLIEST MAXIMAL")):
        world = written([text.format(condition, mode)], given)
        limits, events = Quota(matches=10**5, work=10**6, work_of_block=100_000), 0
        runner = with_limits(world, Run((END,)), limits)
        assert runner.exceeded[0].bound == "work_of_block"
        assert 10_000 < events <= 43_000
        assert with_limits(world, Run(cuts, restarts=frozenset(cuts[::3])), limits).exceeded == runner.exceeded


def test_a_row_may_take_its_steps_in_each_block(monkeypatch):
    world = written(
        ["PATTERN SEQ(SET(E a, E b)) WHERE { a.x > b.x } WITHIN 3 s"],
        [("E", "x:number", " | ".join(f"1 @{t}" for t in range(200)))],
    )
    steps = Quota(work_of_block=2_500)
    assert with_limits(world, Run((END,)), steps).exceeded
    monkeypatch.setattr("common.limits.BLOCK", 10)
    assert not with_limits(world, Run((END,)), steps).exceeded


def test_matches_of_sets_are_counted_after_having():
    statement = "PATTERN SEQ(SET(E a, E b)) WITHIN 1000 s HAVING a.x + b.x > 56"
    given = [("E", "x:number", " | ".join(f"{time} @{time}" for time in range(30)))]
    assert not with_limits(written([statement], given), Run((END,)), Quota(matches=2)).exceeded
    assert with_limits(written([statement], given), Run((END,)), Quota(matches=1)).exceeded


@pytest.mark.parametrize("kind", ["~(E n), E b", "E b, ~(E n), E c", "SET(E b, E c), ~(E n)", "E b, E+ c[]"])
def test_what_was_saved_counts_again(kind):
    condition = "b.x = 0" if "n" not in kind else "n.x > b.x"
    strategy = "skip_till_any_match " if "+" in kind else ""
    statement = f"PATTERN SEQ({kind}) WHERE {strategy}{{{condition}}} WITHIN 100 s"
    world = written([statement], [("E", "x:number", " | ".join(f"{time % 7} @{time}" for time in range(40)))])
    cuts = tuple(time * SECOND for time in range(1, 50))
    for most in (3, 8, 20):
        plain, often = (
            with_limits(world, run, Quota(most)) for run in (Run((END,)), Run(cuts, restarts=frozenset(cuts)))
        )
        assert plain.exceeded == often.exceeded != {}


@pytest.mark.parametrize(
    ("components", "where", "first", "in_block"),
    [
        ("E a, E b", "a.x + b.x < 0", 21, None),
        ("E a, E b", "near(a.t, b.t, 0.9)", 21, None),
        ("E a, E b", "a.x = b.x AND near(a.t, b.t, 0.9)", None, None),
        ("E+ a[], E b", "a[i].x < a[i-1].x AND b.x < a[1].x", 11, None),
        # A run is compared both with what ends it and with what goes on with it.
        ("E a, ~(E n), E b", "n.x + a.x = 0 - 5 AND a.x + b.x >= 0", 11, 14),
        ("E a, ~(E n), E b", "n.x + a.x + b.x = 0 - 5", 7, 11),
        ("E a, ~(E n)", "n.x + a.x = 0 - 5", 21, 20),
        ("~(E n), E a", "n.x >= 0", 21, 20),
        ("~(E n), E a", "n.x + a.x = 0 - 5", 21, 20),
    ],
)
def test_comparisons_of_runs_and_negated_events_are_steps(components, where, first, in_block):
    """Each event remembers another value, so at a time there are as many runs as events before."""
    parts = [(where, 1_000), (where.replace("5", "6"), 3)]
    texts = [ANY.replace("1000", f"{window}").format(components, some) for some, window in parts]
    limits: list[tuple[int, Quota, int | None, LimitName]] = [
        (1, Quota(work=20), first, "work"),
        (1, Quota(work=999, work_of_block=200), in_block, "work_of_block"),
        (10, Quota(work=225), first and (3 if first == 21 else 2), "work"),
    ]
    for at_once, quota, time, bound in limits:
        events = " | ".join(f"{number} w{number} @{number // at_once}" for number in range(40))
        world, end = written(texts, [("E", "x:number t", events)]), 10_000 * SECOND
        found = with_limits(world, Run((end,)), quota).exceeded
        assert found.pop(0, None) == (None if time is None else Excess(time * SECOND, bound))
        cuts = tuple(time * SECOND for time in range(1, 41, 4))
        again = with_limits(world, Run((*cuts, end), restarts=frozenset(cuts[::2])), quota).exceeded
        assert (again.pop(0, None), again) == (None if time is None else Excess(time * SECOND, bound), found)


LONG = f'concat(k, "{"long" * 50}")'
MADE = f"(SELECT x, k, {LONG} AS t FROM E)"
WAITING = {
    f"FROM {MADE} NEXT{{$1.x < 0 AND $2.x < 0}} E": 3,
    "FROM (SELECT x, k, k AS t FROM E) NEXT{$1.x < 0 AND $2.x < 0} E": 1,
    f"FROM E NEXT{{$1.x < 0 AND $2.x < 0}} {MADE}": 1,
    f"FROM (SELECT x AS y, t FROM FILTER{{x >= 0}} {MADE}) NEXT{{y < 0 AND x < 0}} E": 3,
    f"FROM {MADE} UNION (SELECT x, k, k AS t FROM E) NEXT{{$1.x < 0 AND $2.x < 0}} E": 4,
    f"FROM {MADE} FOLD{{$.x < 0, ,}} (SELECT k FROM E)": 3,
    f"FROM {MADE} FOLD{{$.x < 0, , concat($.t, $2.k) AS t}} (SELECT k FROM E)": 3,
    f"FROM AGGREGATE{{argmax({LONG}, x) AS n OVER 100 s}} E": 3,
    f"FROM AGGREGATE{{count() AS n BY t OVER 100 s}} {MADE}": 3,
    f"FROM AGGREGATE{{count(DISTINCT t) AS n OVER SESSION 100 s}} {MADE}": 3,
    f"FROM {MADE} LATEST BEFORE{{$1.x < 0 AND $2.x < 0}} E": 3,
    "FROM AGGREGATE{count() AS n BY t OVER 100 s} (SELECT x, k, k AS t FROM E)": 1,
    f"FROM AGGREGATE{{argmax(t, x) AS n OVER 100 s}} {MADE}": 3,
    f"FROM AGGREGATE{{count(x) AS n OVER 100 s}} {MADE}": 1,
}


@pytest.mark.parametrize("most", [40, 130])
def test_what_waits_counts_the_characters_that_functions_made(most):
    """For each statement by itself, also where it shares operators and events with others."""
    given = [("E", "x:number k:string", " | ".join(f"{time} k{time:02} @{time}" for time in range(60)))]
    world, cuts = written(list(WAITING), given), tuple(time * SECOND for time in range(1, 60))
    times = [most // each if most // each < 60 else None for each in WAITING.values()]
    right = {place: Excess(time * SECOND, "partial") for place, time in enumerate(times) if time is not None}
    for run in (Run((END,)), Run(cuts, restarts=frozenset(cuts[::7])), Run((END,), rules=())):
        assert with_limits(world, run, Quota(most)).exceeded == right
