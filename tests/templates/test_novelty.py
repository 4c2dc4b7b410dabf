"""What conjunctive queries would add to a catalog: the same as what they add."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from templates.catalog import INFINITE, Catalog, needs_of
from tests.generate.seeds import AT_LENGTH, examples
from tests.generate.strategies import cases
from tests.support.conjuncts import conjuncts_of
from xscl.parser import parse_script
from xscl.syntax import Script

SHARED = "FROM S//a[./k->x][./t->z] JOIN {x = y, 1 h} S//b[./m->y]"


@given(cases(max_queries=4), cases(max_queries=4), st.randoms(use_true_random=False))
@examples(20, AT_LENGTH)
def test_what_is_new_is_what_adding_adds(one: tuple[Script, object], other: tuple[Script, object], rng: object) -> None:
    catalog = Catalog()
    there = conjuncts_of(one[0])
    added = conjuncts_of(other[0]) + there[: rng.randint(0, len(there))]  # type: ignore[attr-defined]
    for conjunct in there:
        catalog.add(conjunct, INFINITE, False)
    rows, templates, steps = {catalog.place(c).row for c in there}, len(catalog.templates), set(catalog.steps)
    found = needs_of(catalog, added)
    assert (len(catalog.templates), set(catalog.steps)) == (templates, steps)
    placements = [catalog.add(conjunct, INFINITE, False)[0] for conjunct in added]
    assert (len(found.rows), sum(found.rows.values())) == (
        len({placement.row for placement in placements}),
        len({placement.row for placement in placements} - rows),
    )
    assert len(found.templates) == len({placement.template for placement in placements})
    assert sum(found.templates.values()) == len(catalog.templates) - templates
    assert any(found.patterns.values()) == (set(catalog.steps) != steps)


def test_a_row_that_is_there_is_shared_whatever_its_variables_are_called():
    catalog = Catalog()
    (there,) = conjuncts_of(parse_script(SHARED))
    catalog.add(there, INFINITE, False)
    needs = needs_of(catalog, conjuncts_of(parse_script("FROM S//a[./k->p][./t->w] JOIN {p = q, 9 h} S//b[./m->q]")))
    assert [list(kind.values()) for kind in (needs.patterns, needs.templates, needs.rows)] == [
        [False, False],
        [False],
        [False],
    ]
    needs = needs_of(catalog, conjuncts_of(parse_script("FROM S//a[./k->p][./t->w] JOIN {p = q, 9 h} S//c[./m->q]")))
    assert sorted(needs.patterns.values()) == [False, True]
    assert list(needs.templates.values()) == [False] and list(needs.rows.values()) == [True]
