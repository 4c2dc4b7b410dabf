"""Variables derived from joined nodes are bound as if the pattern were matched again."""

from __future__ import annotations

import random

import pytest

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.queries import forms
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from xscl.syntax import Script

DEEP = """
S//a->x[./b->y[./c->u]] FOLLOWED BY {u = v, 100} S//a->p[./b[./c->v]];
S//a->x[.//b->y[./@k->u]] JOIN {u = v, 100} S//b->q[./@k->v];
S//a->x[./b->y[./c->u][./@k->w]] JOIN {u = v AND w = z, 100} S//b->q[./c->v][./@k->z]
"""


def answered(script: Script | str, documents: list[Document]) -> list[Output]:
    with Session("duckdb") as engine:
        engine.subscribe(script) if isinstance(script, str) else engine.ensure(script)
        return list(engine.process(documents))


def nested(rng: random.Random, depth: int) -> str:
    name = rng.choice("aabbc")
    attribute = f" k='{rng.randint(0, 2)}'" if rng.random() < 0.5 else ""
    below = "".join(nested(rng, depth - 1) for _ in range(rng.randint(0, 3))) if depth else ""
    return f"<{name}{attribute}>{below or rng.randint(0, 2)}</{name}>"


def both(script: Script | str, documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    """The outputs, which are the same if every pattern is matched again."""
    outputs = answered(script, documents)
    with monkeypatch.context() as patched:
        patched.setattr(forms, "derived_variables", lambda pattern, slots: None)
        assert answered(script, documents) == outputs
    return outputs


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_random_queries_bind_the_same(seed: int, monkeypatch: pytest.MonkeyPatch):
    both(*random_case(seed, 12, 10), monkeypatch)


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_ancestors_of_elements_and_attributes_are_bound(seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(seed)
    documents = [Document(f"d{n}", f"<r>{nested(rng, 4)}</r>", time=n * 1_000_000) for n in range(8)]
    assert both(DEEP, documents, monkeypatch)
