"""Random worlds of events with PATTERN statements, some of which read what others publish."""

from __future__ import annotations

from random import Random

from tests.generate.events import StatementMaker, events, schemas, variants
from tests.generate.patterns import PatternMaker
from tests.oracle.pattern_syntax import Statement
from tests.oracle.pattern_world import PatternWorld, pattern_schema


def pattern_world(seed: int, *, templates: int = 5, statements: int = 10, most: int = 8) -> PatternWorld:
    """A world with three streams of at most `most` events each. Most of its statements are patterns.

    P1 is published by CEL, P2 by a pattern that may read it. All others may read both.
    """
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, most) for name, schema in known.items()}
    cel = StatementMaker(rng, known)
    made: list[Statement] = [cel.published("P1", 1)]
    maker = PatternMaker(rng, cel.schemas)
    made.append(maker.statement("P2"))
    cel.schemas["P2"] = pattern_schema(made[1], cel.schemas)
    made += [maker.statement() for _ in range(templates - 3)]
    if cel.schemas["P2"]:
        made.append(cel.statement(1))
    every = variants(rng, made, statements)
    rng.shuffle(every)
    return PatternWorld(known, given, every)
