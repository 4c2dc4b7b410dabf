"""Absences at the edges of their times, and what they may cost, however documents are batched."""

import random

import pytest

from feeds.documents import Document
from join_stage import near
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.faults import FaultySession, Injected

QUERIES = """S//a->x NOT FOLLOWED BY {x = y AND x != k, 4} S/r[./a->y][./k->k] PUBLISH A;
S/r[./a->x][./k->k] NOT JOIN {k = m AND x != y, 3} T/r[./a->y][./k->m] PUBLISH B;
S/r[./a->x][./k->k] NOT PRECEDED BY {k = m AND starts-with(y, x), 6} S/r[./a->y][./k->m] PUBLISH C;
SELECT x, z FROM (SELECT x FROM S//a->x NOT FOLLOWED BY {x = y AND k != "nothing", 2} S/r[./a->y][./k->k])
  FOLLOWED BY {x = z, 9} T//a->z PUBLISH D;
A//a->x NOT FOLLOWED BY {x = y AND x != k, 2} T/r[./a->y][./k->k] PUBLISH E;
T//a->x NOT JOIN {x = y AND x != k, 2} A//r[./a->y][./k->k] PUBLISH F;
S/r[./t->x][./k->k] NOT PRECEDED BY {near(x, y, 0.5) AND k != m, 6} S/r[./t->y][./k->m] PUBLISH G;
S/r[./t->x][./k->k] NOT FOLLOWED BY {near(x, y, 0.7) AND starts-with(m, k), 4} S/r[./t->y][./k->m] PUBLISH H"""


@pytest.fixture(autouse=True)
def learning(monkeypatch):
    """The order of words is learnt in the middle: in another batch if these are longer."""
    monkeypatch.setattr(near, "ENOUGH", 6)


def documents(rng: random.Random, count: int) -> list[Document]:
    """Documents in the order of time, so that none is late. Many have equal values that no query wants to be equal."""
    found, time = [], 0
    for number in range(count):
        time += rng.choice((0, 0, 1, 1, 2, 5)) * SECOND
        nodes = "".join(f"<a>{rng.choice('uv')}</a>" for _ in range(rng.choice((1, 1, 2))))
        text = " ".join(rng.choices(("storm", "hits", "the", "coast", "a"), k=rng.choice((2, 3, 4))))
        xml = f"<r>{nodes}<k>{rng.choice('uuv')}</k><t>{text}</t></r>"
        found.append(Document(f"d{number}", xml, rng.choice("SST"), time))
    return found


def lived(script: str, given: list[Document], size: int, most: int) -> tuple[object, ...]:
    """The outputs, why queries were paused, and what was spent, if so many documents come at a time."""
    with Session("duckdb", lateness=0, max_work=most, quiet=True) as engine:
        engine.subscribe(script)
        got: list[OutputRow] = []
        for start in range(0, len(given), size):
            got += map(as_row, engine.process(given[start : start + size]))
        paused = {one.name: one.paused for one in engine.registry.subscriptions.values() if one.paused is not None}
        rows = engine.sql("SELECT owner, sum(work) AS work FROM spent GROUP BY owner ORDER BY owner").to_pylist()
        return comparable(got), paused, [(row["owner"], int(row["work"])) for row in rows]


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_the_bounds_of_absences_depend_on_no_batch(seed):
    rng = random.Random(seed)
    script = "; ".join(rng.sample([one.strip() for one in QUERIES.split(";")], 8)[: rng.choice((1, 3, 6))])
    given, most = documents(rng, 16), rng.choice((8, 12, 16, 24, 40, 10_000))
    one, *others = (lived(script, given, size, most) for size in (1, rng.choice((2, 5, 9)), 100))
    assert one[0] or one[1]
    assert others == [one, one]


def test_a_decision_that_takes_too_long_pauses_the_query_at_the_document_that_decides_it():
    """Also if that comes long after its own document."""
    text = "S/r[./a->x][./k->k] NOT FOLLOWED BY {x = y AND starts-with(m, k), 100} S/r[./a->y][./m->m] PUBLISH silent"
    vain = [Document(f"v{n}", f"<r><a>u</a><m>{'!' * 12_800}</m></r>", time=(n + 1) * SECOND) for n in range(10)]
    ends = [Document(name, "<z/>", time=at * SECOND) for name, at in (("last", 100), ("decides", 101), ("later", 102))]
    given = [Document("d", "<r><a>u</a><k>?</k></r>", time=0), *vain, *ends]
    for size in (1, 7):
        out, paused, _ = lived(text, given, size, 400)
        assert not out and paused == {"silent": "more than 400 steps for the document 'decides' (max-work)"}
        assert lived(text, given, size, 1_000)[0]


T = 10 * SECOND
BEGINS, ENDS = 100 * SECOND, 100 * SECOND + 5
LATENESS = 3 * SECOND

PARTNERS = {
    "NOT FOLLOWED BY": (
        [(ENDS + 1, ENDS + 1), (BEGINS + T, BEGINS + T), (ENDS + 1, BEGINS + T)],
        [(at, at) for at in (BEGINS - 1, ENDS, BEGINS + T + 1)] + [(ENDS + 1, BEGINS + T + 1)],
    ),
    "NOT JOIN": (
        [(BEGINS, ENDS), (BEGINS + T, BEGINS + T), (ENDS - T, ENDS - T), (ENDS - T, ENDS)],
        [(BEGINS + T + 1, BEGINS + T + 1), (ENDS - T - 1, ENDS - T - 1), (ENDS - T, BEGINS + T)],
    ),
    "NOT PRECEDED BY": (
        [(BEGINS - 1, BEGINS - 1), (ENDS - T, ENDS - T), (ENDS - T, BEGINS - 1)],
        [(BEGINS, BEGINS), (BEGINS - 1, BEGINS), (ENDS - T - 1, BEGINS - 1), (ENDS + 1, ENDS + 1)],
    ),
}
"""By operator, times of documents that are partners of one from BEGINS to ENDS, and of some that are not."""

OVER = BEGINS + T + 1
"""The watermark that decides what did not follow, or come near, a document that begins at BEGINS."""


def query(op: str, name: str = "alone") -> str:
    return f"S/a->x {op} {{x = y, 10}} S/b->y PUBLISH {name}"


@pytest.mark.parametrize("op", PARTNERS)
def test_which_documents_are_partners(op):
    partners, others = PARTNERS[op]
    rights = [Document(f"b{n}", f"<b>{n}</b>", time=time) for n, time in enumerate(partners + others)]
    lefts = [Document(f"a{n}", f"<a>{n}</a>", time=(BEGINS, ENDS)) for n in range(len(rights))]
    with Session("duckdb") as engine:
        engine.subscribe(query(op))
        engine.process([*rights, *lefts])
        alone = {output.documents[0] for output in engine.finish()}
    assert alone == {f"a{n}" for n in range(len(partners), len(rights))}


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "over restarts"])
def test_which_watermark_decides(restarts, tmp_path):
    """Other documents move the watermark."""
    times = [BEGINS, *(at + LATENESS + by for at in (BEGINS, OVER) for by in (-1, 0, 1))]
    came = [Document("a", "<a>u</a>", time=(BEGINS, ENDS)), *(Document(f"c{at}", "<c/>", time=at) for at in times)]
    told: list[set[str]] = []
    engine = Session("duckdb", state=tmp_path, lateness=LATENESS)
    engine.subscribe(";".join(query(op, op.replace(" ", "_").lower()) for op in PARTNERS))
    for document in came:
        if restarts:
            engine.close()
            engine = Session("duckdb", state=tmp_path, lateness=LATENESS)
        told.append({output.query for output in engine.process([document])})
    engine.close()
    nothing: set[str] = set()
    after = {"not_followed_by", "not_join"}
    assert told == [nothing, nothing, nothing, {"not_preceded_by"}, nothing, nothing, after, nothing]


@pytest.mark.parametrize("op", PARTNERS)
def test_the_last_that_is_not_late_counts(op):
    """Before the decision, a partner that is as late as one may be breaks an absence. What is later does not."""
    late = ENDS + 1 if op == "NOT FOLLOWED BY" else BEGINS - 1
    for time, is_partner in ((late, True), (late - 1, False)):
        moves = Document("c", "<c/>", time=late + LATENESS)
        partner = Document("b", "<b>u</b>", time=time)
        with Session("duckdb", lateness=LATENESS, quiet=True) as engine:
            engine.subscribe(query(op))
            outputs = list(engine.process([Document("a", "<a>u</a>", time=(BEGINS, ENDS))]))
            outputs += engine.process([moves])
            outputs += engine.process([partner])
            assert len(list(engine.dead_letters())) == (not is_partner)
            outputs += engine.process([Document("d", "<c/>", time=BEGINS + 2 * T)])
        assert len(outputs) == (not is_partner)


@pytest.mark.parametrize(("most", "decided"), [(10, ["a0", "a1", "a2"]), (2, [])])
def test_silence_decides_once_within_quotas_although_a_commit_fails(most, decided, tmp_path):
    now, idle = BEGINS, 60 * SECOND

    def opened() -> FaultySession:
        options = {"idle_after": idle, "now": lambda: now, "max_outputs": most}
        return FaultySession("duckdb", state=tmp_path, lateness=LATENESS, quiet=True, **options)

    with opened() as engine:
        engine.subscribe(f"{query('NOT FOLLOWED BY')}; alone//a PUBLISH readers")
        engine.process([Document(f"a{n}", f"<a>{n}</a>", time=BEGINS) for n in range(3)])
        now += idle
        assert not engine.pass_time()
    with opened() as engine:
        now += idle + T + 2 * LATENESS
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.pass_time()
        assert not list(engine.outputs())
        assert engine.pass_time() and not engine.pass_time()
        told = [(one.seq, one.query, one.documents[0]) for one in engine.outputs()]
        right = [(name, id) for name in ("alone", "readers") for id in decided]
        assert told == [(seq, name, id) for seq, (name, id) in enumerate(right)]
        assert (engine.registry.named("alone")[0].paused is not None) == (not decided)
