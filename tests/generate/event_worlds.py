"""Random worlds of events: streams, statements of few templates that read one another, and what each of them finds."""

from __future__ import annotations

from random import Random

from tests.generate.events import StatementMaker, events, schemas, variants
from tests.oracle.events import World


def world(seed: int, *, templates: int = 4, statements: int = 10, most: int = 16, depth: int = 3) -> World:
    """A world with three streams of at most `most` events each.

    The first two statements are published as P1 and P2, and the second may read the first.
    """
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, most) for name, schema in known.items()}
    maker = StatementMaker(rng, known)
    made = [maker.published("P1"), maker.published("P2")]
    made += [maker.statement(depth) for _ in range(templates - 2)]
    every = variants(rng, made, statements)
    rng.shuffle(every)
    return World(known, given, every)
