"""An engine in live use against the model of it: queries come, go, rest and are replaced, stores are opened again in
other ways, processes die and stores fail, between batches of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from join_stage import near_candidates
from join_stage.plans import PLANS
from join_stage.signature import disk, join
from join_stage.store import duckdb
from mmqjp.answers import events as events_state
from mmqjp.documents import record
from tests.generate.documents import SECOND, START
from tests.generate.seeds import at_length, seeds
from tests.live import operations as ops
from tests.live.cases import BOUNDED, FED, FREE, SILENT, operations_with_events, random_operations
from tests.live.events import SETTLE
from tests.live.operations import (
    Batch,
    Broken,
    Operation,
    Pause,
    Prune,
    Reopen,
    Resume,
    Subscribe,
    Unsubscribe,
    printed,
    shrunk,
    taken,
)
from tests.live.run import Live
from tests.oracle.cases import docs
from tests.support.in_turn import in_turn

if TYPE_CHECKING:
    pass

SETTLING = Reopen(settle=SETTLE)
SILENT_SOON = Reopen(lateness=0, idle_after=SECOND)


@pytest.fixture(autouse=True)
def on_disk(request, monkeypatch):
    """In about every other case, all postings of a batch are written to disk, and merged a few at a time. The order of
    words is learnt from a few texts. Memory holds only some of these, and of the ids of documents, and any index of
    texts is soon too large. The state of event statements is stored whole every four batches. A store's journal is
    used for all small batches, or not after one for which it was of no use."""
    monkeypatch.setattr(near_candidates, "ENOUGH", 5)
    monkeypatch.setattr(near_candidates, "AGAIN", 2)
    monkeypatch.setattr(near_candidates, "MOST_HELD", 40)
    monkeypatch.setattr(record, "RECENT_IDS", 3)
    monkeypatch.setattr(record, "READ_IDS", 4)
    monkeypatch.setattr(events_state, "SNAPSHOT_EVERY", 4)
    params = request.node.callspec.params
    monkeypatch.setattr(duckdb, "MOST_PASSED_OVER", 63 * (params.get("seed", 2) % 5 % 2))
    monkeypatch.setattr(near_candidates, "MOST_INDEXED", (-1, 20, 1 << 26)[params.get("seed", 2) % 3])
    if params.get("seed", len(params.get("cause", ""))) % 2 == 0:
        monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
        monkeypatch.setattr(disk, "PIECE", 16)


def batch(text: str) -> Batch:
    """The documents of a text as `docs` takes it."""
    return Batch(tuple(taken(document, START) for document in docs(text)))


def came(*texts: str) -> Iterator[Batch]:
    return map(batch, texts)


def failure(operations: Sequence[Operation], place: Path) -> Exception | None:
    try:
        Live("duckdb", place, START).run(operations)
    except Exception as error:
        return error
    return None


def lived(operations: list[Operation], place: Path) -> None:
    """Asserts that an engine does what the model expects; what fails is printed in short."""
    if (error := failure(operations, place)) is not None:
        short = shrunk(operations, lambda candidate: type(failure(candidate, place)) is type(error))
        raise AssertionError(f"{failure(short, place)!r}\n{printed(short)}") from error


SILENT_FOR_3 = "S/a->x NOT FOLLOWED BY {x = y, 3} S/b->y PUBLISH P"
FIRST_OF_ALL = "S/a->x NOT PRECEDED BY {x = y, INF} S/b->y"
EVENT_A = "DEFINE EVENT A FROM S//a->r (k := r/x)"
EVENT_B = "DEFINE EVENT B FROM S//*->r (k := r/y)"
AB = f"{EVENT_A}; {EVENT_B}"
OF_B = "DEFINE EVENT B FROM S//b->r (k := r/x)"
COUNTS_E = 'FROM AGGREGATE{count() AS n OVER 5 s} FILTER{k != ""} E'
COUNTS_A = "FROM AGGREGATE{count() AS n BY k OVER 5 s} A"
READS_E = 'FROM FILTER{k != "v"} E NEXT{$1.k = $2.k} B'


def events(*seconds: int) -> Iterator[Batch]:
    """A document at each of these seconds."""
    return came(*(f"e{at}@{at} <a><x>u</x><y>v</y></a> | T:o{at}@{at} <c/>" for at in seconds))


def pattern(components: str, text: str, publish: str) -> str:
    variable = "n" if "~" in components else "a"
    return (
        f"{EVENT_A}; {OF_B}; PATTERN SEQ({components}) "
        f'WHERE {{{variable}.k = "{text}"}} WITHIN 7 s RETURN a.k AS p, b.k AS q PUBLISH {publish}'
    )


WRONG: dict[str, list[Operation]] = {
    "told by another process, and forgotten": [
        Reopen(lateness=5 * SECOND), Subscribe("S/a->x PUBLISH P ONCE PER (x) WITHIN 10; P//a PUBLISH Q"),
        *came("d1@0 <a>u</a> | d2@0 <a>u</a>", "d3@15 <a>v</a>", "d4@10 <a>u</a>"),
        Reopen(lateness=5 * SECOND), *came("d5@16 <a>v</a>"), Reopen(),
        *came("d6@1 <a>u</a> | d7@8 <a>v</a>", "d8@100 <a>v</a>", "d9@0 <a>u</a> | d10@0 <a>v</a>"),
    ],
    "told before the watermark fell, but not to all": [
        Reopen(lateness=2 * SECOND), Subscribe(SILENT_FOR_3),
        *came("d1@0 <a>u</a>", "d2@10 <c/>"),
        Reopen(lateness=20 * SECOND), Subscribe(SILENT_FOR_3.replace("H P", "H Q"), backfill=True),
        Subscribe(f"{FIRST_OF_ALL} JOIN {{x = z, INF}} S/a->z", backfill=True),
        *came("d3@2 <b>v</b> | d4@3 <a>v</a>", "d5@25 <c/>"),
        Subscribe(f"{FIRST_OF_ALL} FOLLOWED BY {{x = z, INF}} S/a->z PUBLISH R", backfill=True),
        *came("d6@40 <a>u</a>"),
    ],
    "what came while nothing was decided": [
        Reopen(lateness=2 * SECOND), Subscribe(SILENT_FOR_3), *came("d1@20 <c/>", "d2@21 <c/>"),
        Reopen(), *came("d3@1 <a>u</a> | d4@2 <b>v</b>", "d5@3 <b>v</b>"),
        Reopen(lateness=2 * SECOND), *came("d6@22 <c/>", "d7@23 <c/>"),
    ],
    "a publisher that lags behind": [
        Reopen(lateness=2 * SECOND), Subscribe("S/b PUBLISH R; S/a->x NOT JOIN {x = y, 3} R//b->y PUBLISH P"),
        *came("d1@0 <a>u</a> | d2@0 <a>v</a> | T:t1@0 <a/>", "d3@10 <c/>"),
        Subscribe("S/b PUBLISH R; T/b PUBLISH R; S/a->x NOT JOIN {x = y, 3} R//b->y PUBLISH Q", backfill=True),
        *came("T:d4@1 <b>u</b>", "T:d5@30 <c/>"),
    ],
    "an event statement is edited and edited back": [
        SETTLING, Subscribe(f"{EVENT_A}; FROM A PUBLISH E; FROM A PUBLISH F"), *events(0, 5),
        Subscribe(f'{EVENT_A}; FROM FILTER{{k = "u"}} A PUBLISH E'), *events(10, 15),
        Subscribe(f"{EVENT_A}; FROM A PUBLISH E"), *events(20, 25),
        Subscribe(f"{EVENT_A.replace('r/x', 'r/y')}; FROM A PUBLISH E; FROM A PUBLISH F"), *events(30, 35),
        Subscribe(f"{EVENT_A}; FROM A PUBLISH E; FROM A PUBLISH F", backfill=True), *events(40, 45),
    ],
    "one of two equal event statements is resumed": [
        SETTLING,
        Subscribe(f"{EVENT_A}; FROM A NEXT {{$1.k = $2.k}} B PUBLISH P; DEFINE EVENT B FROM S//*->r (k := r/x)"),
        *events(0, 5),
        Subscribe(f"{EVENT_A}; DEFINE EVENT B FROM S//*->r (k := r/x); FROM A NEXT {{$1.k = $2.k}} B PUBLISH Q"),
        *events(6), Pause("Q"), Resume("Q"), *events(7, 12, 20),
    ],
    **{
        f"a backfill beside what waits: {components}": [
            SETTLING, Subscribe(pattern(components, "u", "M")), *events(0, 2, 4),
            Subscribe(pattern(components, "v", "N"), backfill=True), *events(5, 6, 7, 20),
        ]
        for components in ("A a, A b", "~(B n), A a, A b", "A a, ~(B n), A b", "A a, A b, ~(B n)", "SET(A a, B b)")
    },
    "what was there is subscribed again with a backfill": [
        Reopen(), Subscribe("S/a PUBLISH P; P/match->m PUBLISH R"), *came("d1@0 <a/>"),
        Subscribe("S/a PUBLISH P", backfill=True),
        Subscribe("S/* PUBLISH P; P/match->m PUBLISH R", backfill=True),
        Unsubscribe("P"), Subscribe("S/a PUBLISH P", backfill=True),
    ],
    "what is defined otherwise, with a backfill": [
        SETTLING, Subscribe(f"{AB}; FROM A NEXT B WITHIN 6 s PUBLISH P", backfill=True), *events(0, 4),
        Subscribe(f"{EVENT_A.replace('r/x', 'r/y')}; {EVENT_B}; FROM A NEXT B WITHIN 6 s PUBLISH P", backfill=True),
        *events(8, 12),
    ],
    "what is published otherwise, with a backfill": [
        SETTLING, Subscribe(f"{EVENT_A}; {OF_B}; FROM A PUBLISH E; {READS_E} PUBLISH P", backfill=True), *events(0, 4),
        Subscribe(f'{EVENT_A}; {OF_B}; FROM FILTER{{k = "u"}} B PUBLISH E; {READS_E} PUBLISH P', backfill=True),
        *came("b8@8 <b><x>u</x></b>"), *events(12),
    ],
    "what is published otherwise, with a backfill beside statements that stay": [
        SETTLING, Subscribe(f"{EVENT_A}; {OF_B}; FROM A PUBLISH E; {READS_E} PUBLISH P; {COUNTS_E}", backfill=True),
        *events(0, 4), *came("b6@6 <b><x>u</x></b>"),
        Subscribe(f"{EVENT_A}; {OF_B}; FROM A UNION B PUBLISH E; {READS_E} PUBLISH Q; {COUNTS_E}", backfill=True),
        *events(9), SETTLING, *came("b10@10 <b><x>u</x></b>"), *events(12, 18),
    ],
    "a backfill reads what statements that stay have told, one of which rests": [
        SETTLING,
        Subscribe(f"{AB}; FROM A NEXT{{$1.k = $2.k}} B PUBLISH P; FROM A UNION B PUBLISH E; {COUNTS_A}"),
        *events(0, 2), Pause("E"), *events(5), Resume("E"), *events(7), Pause("E"), *events(8),
        Subscribe(f"{AB}; {COUNTS_E}; {COUNTS_A}; FROM FILTER{{k = k_1}} P", "add", backfill=True),
        *events(9), SETTLING, *events(10, 20),
    ],
    "a backfill before any time is over, and another statement": [
        SETTLING, Subscribe(pattern("~(B n), A a, A b", "u", "M").replace("S//b", "T//b"), backfill=True),
        *came("d1@0 <a><x>u</x></a> | d2@4 <a><x>u</x></a>"),
        Subscribe(pattern("~(B n), A a, A b", "u", "N").replace("S//b", "T//b")),
        *came("T:d3@9 <c/> | d4@10 <a><x>v</x></a>"),
    ],
    **{
        f"a backfill while a stream is silent, {how}": [
            SETTLING, Subscribe(pattern("SET(A a, B b)", "u", "M").replace("S//b", "T//a")),
            *came("d1@0 <a><x>u</x></a> | d2@5 <a><x>u</x></a>"),
            Subscribe(pattern("A a, A b, ~(B n)", "v", publish).replace("S//b", "T//a"), backfill=True),
            *came("d3@12 <c/> | T:d4@11 <a><x>u</x></a>", "d5@22 <c/> | T:d6@21 <a/>"),
        ]
        for how, publish in {"in another's place": "M", "beside another": "N"}.items()
    },
    **{
        f"a backfill publishes nothing for a reader that goes: {publisher}": [
            SETTLING, Subscribe(f"{reader} PUBLISH R"), *events(0, 4),
            Subscribe(f"{publisher}; S/b PUBLISH R", backfill=True),
        ]
        for publisher, reader in {
            "S//a PUBLISH P": "P/match->m",
            "S//a->m PUBLISH P": "S/a->r1[./x->v1] JOIN {v1 = v2, 9} (P/match->r2[./m->v2] JOIN {v2 = v3, 9} S/b->v3)",
            f"{EVENT_A}; FROM A PUBLISH E": "E/match->m",
        }.items()
    },
    "what publishes events goes, and its reader stays": [
        SETTLING, Subscribe(f"{EVENT_A}; {OF_B}; FROM A PUBLISH E; {READS_E} PUBLISH P"), *events(0, 4),
        Unsubscribe("E"), SETTLING, *events(8),
        Subscribe(f'{EVENT_A}; FROM FILTER{{k = "u"}} A PUBLISH E'), *events(12, 18),
    ],
    "a join has the name of an event statement that was there": [
        SETTLING, Subscribe(f"{AB}; {COUNTS_A}", backfill=True),
        Unsubscribe("q1"), Subscribe("S/a->r1[./x->v1] FOLLOWED BY {v1 = v2, 8 s} S//a->r2[./y->v2] PUBLISH q1"),
        *came("d1@0 <a><x>u</x></a> | d2@1 <a><y>u</y></a>"),
    ],
    "who reads absences sees what is published while it is there": [
        Reopen(lateness=2 * SECOND), Subscribe(f"{SILENT_FOR_3}; P//a PUBLISH R"),
        Pause("R"), *came("d1@0 <a>u</a>"), Subscribe("P//a PUBLISH Q"), Resume("R"), *came("d2@10 <c/>"),
    ],
    "new groups of a batch that failed wait for one that stores witnesses": [
        Reopen(), *came("d0@0 <c/>"), Subscribe("S/a->r[./x->v] FOLLOWED BY {v = w, 8} S/a->r1[./y->w]"),
        Broken(batch("d1@0 <a><x>1</x></a>"), call=3, dies=False), *came("d0@0 <c/>", "d2@1 <a><x>1</x></a>"),
        Reopen(), *came("d3@2 <a><y>1</y></a>"),
    ],
    **{
        f"a process whose first batch fails, window {window}": [  # as many rows as plans
            Reopen(), Subscribe(f"S/a->r[./x->v] JOIN {{v = w, {window}}} S/b->r1[./x->w]"),
            *came("d1@0 <a><x>v</x></a>"), Reopen(),
            Broken(batch("T:d2@1 <a><x>q</x></a>"), call=1, dies=False), *came("d3@6 <b><x>v</x></b>"),
        ]
        for window in (7, 8, 9)
    },
    **{
        f"what waits with an event is there again although its publisher has gone: {type(change).__name__}": [
            SETTLING, Subscribe(f'{EVENT_B}; FROM FILTER{{k = "u"}} B PUBLISH E; {READS_E} PUBLISH P'),
            *came("d1@0 <a><y>u</y></a> | d2@5 <b><y>z</y></b>"), change, *came("d3@5 <a><y>u</y></a>"),
            SETTLING, *came("d4@10 <a><y>v</y></a>"),
        ]
        for change in (Subscribe(f'{EVENT_B}; FROM FILTER{{k = "v"}} B PUBLISH E'), Pause("E"), Unsubscribe("E"))
    },
    "all documents are dropped, and their numbers are not": [
        SILENT_SOON, *came(" | ".join(f"d{n}@{n} <a>v</a>" for n in range(5))),
        Subscribe("S/a->x FOLLOWED BY {x = y, 10} S/a->y"),
        SILENT_SOON, ops.PassTime(10**6 * SECOND), Prune(0, None),
        SILENT_SOON, *came("e0@1000000 <a>v</a> | e1@1000001 <a>v</a>"),
    ],
}  # fmt: skip
"""What went wrong once, or nearly, by its cause."""


@pytest.mark.parametrize(("cause", "plan"), in_turn(WRONG, PLANS))
def test_what_went_wrong_once(cause, plan, tmp_path):
    operations = [replace(o, plan=plan) if isinstance(o, Reopen) else o for o in WRONG[cause]]
    Live("duckdb", tmp_path, START).run(operations)


LIVES = [(FREE, False), (BOUNDED, False), (SILENT, False), (FED, False), (BOUNDED, True), (SILENT, True), (FED, True)]
"""Of which timings random lives are, and whether they have absences in longer queries."""


@pytest.mark.parametrize("seed", seeds(len(LIVES), 5_000, first=7))
def test_live_use_gives_what_the_model_expects(seed, tmp_path):
    timing, inner = LIVES[seed % len(LIVES)]
    length = (14 if inner else 18) if at_length() else 9
    lived(random_operations(Random(seed), timing, length, inner=inner), tmp_path)


@pytest.mark.parametrize("seed", seeds(2, 3_000, first=1))
def test_live_use_of_event_statements_gives_what_the_model_expects(seed: int, tmp_path: Path):
    lived(operations_with_events(Random(seed), 18 if at_length() else 10), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("seed", "with_events"), [(5, 6), (6, 9)])
def test_live_use_on_spark_gives_what_the_model_expects(seed, with_events, spark, tmp_path):
    live = Live(spark, tmp_path, START)
    live.run(random_operations(Random(seed), FED, 6))  # not shrunk: each trial takes long
    assert live.outputs > 0
    for patterns in ("driver", "executors"):
        live = Live(spark, tmp_path, START, patterns)
        live.run(operations_with_events(Random(with_events), 12))
        assert live.outputs > 0
