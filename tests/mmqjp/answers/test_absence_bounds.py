"""What absences may cost: the same bound, however documents are batched."""

from __future__ import annotations

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
def learning(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_bounds_of_absences_depend_on_no_batch(seed: int):
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
