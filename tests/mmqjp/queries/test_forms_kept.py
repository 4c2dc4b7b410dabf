"""What is kept of queries that come, pause, go on and leave: the forms of those that are registered, and no others."""

import random

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.seeds import seeds

KEYWORD = 'FROM S//a->x[./t->t][./w->w] JOIN {{t = u AND contains(w, "k{n}"), {window} h}} S//b->y[./t->u]'
PLAIN = "FROM S//a->x[./t{n}->t] JOIN {{t = u, {window} h}} S//b->y[./t->u]"


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_forms_go_with_their_last_query(seed: int):
    rng = random.Random(seed)
    names: list[str] = []
    with Session("duckdb", quiet=True) as engine:
        for step in range(120):
            do = rng.choice(["add", "add", "add", "remove", "pause", "resume", "document"])
            if do == "add" or not names:
                query = rng.choice([KEYWORD, PLAIN]).format(n=rng.randrange(20), window=rng.randint(1, 2))
                names += engine.subscribe(f"{query} PUBLISH n{step}", add=True)
            elif do == "remove":
                engine.unsubscribe(names.pop(rng.randrange(len(names))))
            elif do == "pause":
                engine.pause(rng.choice(names))
            elif do == "resume":
                engine.resume(rng.choice(names))
            else:
                engine.process([Document(f"d{step}", "<a><t>1</t><w>k1 k2</w></a>", time=step)])
            registry = engine.registry
            assert registry._forms._known.keys() == {query.form_id for query in registry.subscriptions.values()}
