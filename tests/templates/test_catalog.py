import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from common.bounds import INFINITE
from templates.catalog import Catalog, Change, Placement, needs_of
from tests.generate.seeds import AT_LENGTH, at_length, examples
from tests.generate.strategies import cases
from tests.support.conjuncts import conjunct, conjuncts_of
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct
from xscl.syntax import Script

Q1 = "S//book[./author->a][./title->t] JOIN {a = b AND t = u, 1 h} S//blog[./author->b][./title->u]"


def state(catalog: Catalog) -> object:
    """All that a catalog holds but the templates, of which there are few and which stay."""
    return (
        dict(catalog.steps),
        dict(catalog._step_ids),
        *(+uses for uses in (catalog._uses.steps, catalog._uses.edges, catalog._uses.values)),
        {key: (row.variables, row.row()) for key, row in catalog._rows._by_key.items()},
        dict(catalog._rows._by_number),
        dict(catalog._rows._restored),
    )


class Books:
    """What stages 1 and 2 hold, kept by applying the catalog's changes, strictly."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.edges: set[tuple[int, int]] = set()
        self.values: set[int] = set()
        self.rows: dict[int, object] = {}

    def add(self, change: Change) -> None:
        steps = [step.id for step in change.steps]
        for step in change.steps:
            assert step.parent is None or step.parent in self.steps or step.parent in steps[: steps.index(step.id)]
        for held, new in ((self.steps, steps), (self.edges, change.edges), (self.values, change.values)):
            assert len(set(new)) == len(new)
            assert held.isdisjoint(new)
            held.update(new)  # type: ignore[arg-type]
        self.rows |= {row.id: row for row in change.rows}

    def remove(self, gone: Change, changed: Change) -> None:
        assert self.steps >= {step.id for step in gone.steps}
        assert self.edges >= set(gone.edges)
        assert self.values >= set(gone.values)
        self.steps -= {step.id for step in gone.steps}
        self.edges -= set(gone.edges)
        self.values -= set(gone.values)
        for row in gone.rows:
            del self.rows[row.id]
        self.rows |= {row.id: row for row in changed.rows}


@given(st.lists(cases(max_queries=4), min_size=1, max_size=3), st.randoms(use_true_random=False))
@examples(20, AT_LENGTH)
def test_removal_takes_back_exactly_what_adding_brought(found: list[tuple[Script, object]], rng: Random):
    queries = [conjunct for script, _ in found for conjunct in conjuncts_of(script)]
    queries += [rng.choice(queries) for _ in range(len(queries) // 2)]
    queries += [replace(query) for query in queries[:3]]  # equal, but not the same
    catalog, books = Catalog(), Books()
    standing: list[tuple[Placement, int, bool]] = []
    for query in queries:
        window, ordered = rng.choice((1, 2, 5, INFINITE)), rng.random() < 0.5
        before = state(catalog)
        placement, change = catalog.add(query, window, ordered)
        if rng.random() < 0.3:
            catalog.remove(placement.row, window, ordered)
            assert state(catalog) == before
            continue
        books.add(change)
        standing.append((placement, window, ordered))
        check_placement(catalog, query, placement)
    rng.shuffle(standing)
    while standing:
        check_books(catalog, books, standing)
        placement, window, ordered = standing.pop()
        books.remove(*catalog.remove(placement.row, window, ordered))
    check_books(catalog, books, [])
    assert state(catalog) == state(Catalog())


def check_placement(catalog: Catalog, query: Conjunct, placement: Placement) -> None:
    """The slots carry the query's nodes to the template's, edges to edges and variables to the row's."""
    slots = [slot for side in placement.slots for slot in side]
    assert sorted(slots) == list(range(len(slots)))
    shape, variables = catalog.templates[placement.template], catalog.variables_of(placement.row)
    nodes = [node for side in placement.minors for node in side.nodes]
    left = len(placement.minors[0].nodes)
    for i, node in enumerate(nodes):
        offset = 0 if i < left else left
        parent = None if node.parent is None else slots[node.parent + offset]
        assert shape.parents[slots[i]] == parent
        assert (slots[i] >= shape.left) == (i >= left)
        assert definition(catalog, variables[slots[i]]) == list(map(str, node.definition))
    joins = {
        (slots[placement.minors[0].node_of[a]], slots[placement.minors[1].node_of[b] + left]) for a, b in query.joins
    }
    assert joins == set(shape.joins)


def definition(catalog: Catalog, variable: int | None) -> list[str]:
    if variable is None:
        return []
    step = catalog.steps[variable]
    return [*definition(catalog, step.parent), str(step.node)]


def check_books(catalog: Catalog, books: Books, standing: list[tuple[Placement, int, bool]]) -> None:
    """The stages hold what the standing queries need and no more; rows have the subscribers' windows."""
    needs = catalog.needs_of(placement.row for placement, _, _ in standing)
    assert books.steps == {step.id for step in needs.steps} == set(catalog.steps)
    assert books.edges == set(needs.edges)
    assert books.values == set(needs.values)
    windows: dict[int, list[int]] = {}
    orders: dict[int, list[bool]] = {}
    for placement, window, ordered in standing:
        windows.setdefault(placement.row, []).append(window)
        orders.setdefault(placement.row, []).append(ordered)
    assert {row: (r.window, r.ordered) for row, r in books.rows.items()} == {  # type: ignore[attr-defined]
        row: (max(of_row), all(orders[row])) for row, of_row in windows.items()
    }


def test_what_the_removal_of_the_largest_window_costs_does_not_grow_with_those_that_came_and_went_under_it():
    catalog, query = Catalog(), conjunct(Q1)
    row = catalog.add(query, 5, True)[0].row

    def renew(times: int) -> int:
        catalog.add(query, 100, True)
        for _ in range(times):
            catalog.add(query, 50, True)
            catalog.remove(row, 50, True)
        return calls(lambda: catalog.remove(row, 100, True))

    assert renew(1000) == renew(1)


@given(st.lists(cases(max_queries=4), min_size=1, max_size=3), st.randoms(use_true_random=False))
@examples(20, AT_LENGTH)
def test_restored_rows_stand_for_what_was_added(found: list[tuple[Script, object]], rng: Random):
    queries = [conjunct for script, _ in found for conjunct in conjuncts_of(script)]
    first, books = Catalog(), Books()
    rows = [first.add(query, 1, True)[0].row for query in queries]
    steps = [(str(step.node), step) for _, step in sorted(first.steps.items())]
    again = Catalog({step.key: step.id for _, step in steps}, first.next_step, first.templates)
    keys = [(first.row(row).template, first.variables_of(row)) for row in rows]
    numbers, change = again.restore(steps, keys)
    books.add(change)
    standing = [(query, numbers[key]) for query, key in zip(queries, keys, strict=True)]
    for _, row in standing:
        books.add(Change(rows=(again.subscribe(row, 1, True),)))
    rng.shuffle(standing)
    for query, row in standing:
        if rng.random() < 0.5:
            placement = again.place(query)
            assert placement.row == row
            check_placement(again, query, placement)
        if rng.random() < 0.5:  # another that is equal finds the row, if it is still there
            placement, change = again.add(replace(query), 1, True)
            assert change == Change(rows=(again.row(row),))
            again.remove(row, 1, True)
        books.remove(*again.remove(row, 1, True))
    assert not (books.steps or books.edges or books.values or books.rows)
    assert state(again) == state(Catalog())


@given(cases(max_queries=4), cases(max_queries=4), st.randoms(use_true_random=False))
@examples(20, AT_LENGTH)
def test_what_is_new_is_what_adding_adds(one: tuple[Script, object], other: tuple[Script, object], rng: Random):
    catalog = Catalog()
    there = conjuncts_of(one[0])
    added = conjuncts_of(other[0]) + there[: rng.randint(0, len(there))]
    for query in there:
        catalog.add(query, INFINITE, False)
    rows, templates, steps = {catalog.place(c).row for c in there}, len(catalog.templates), set(catalog.steps)
    found = needs_of(catalog, added)
    assert (len(catalog.templates), set(catalog.steps)) == (templates, steps)
    placements = [catalog.add(query, INFINITE, False)[0] for query in added]
    assert (len(found.rows), sum(found.rows.values())) == (
        len({placement.row for placement in placements}),
        len({placement.row for placement in placements} - rows),
    )
    assert len(found.templates) == len({placement.template for placement in placements})
    assert sum(found.templates.values()) == len(catalog.templates) - templates
    assert any(found.patterns.values()) == (set(catalog.steps) != steps)


def calls(action: Callable[[], object]) -> int:
    """How many functions, Python's and C's, are called."""
    count = 0

    def profile(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def numbered(i: int) -> Conjunct:
    """One of many queries: some variables are shared with others, a literal is its own."""
    left = f"S//item[./author->a][./t{i % 50}->t][./category = 'c{i}']"
    return conjunct(f"{left} JOIN {{a = b AND t = u, {1 + i} s}} S//item[./author->b][./t{i % 7}->u]")


def test_adding_and_removing_a_query_costs_the_same_among_a_hundred_and_among_many():
    catalog, stage = Catalog(), XPathStage()

    def add(i: int) -> Placement:
        placement, change = catalog.add(numbered(i), 1 + i, True)
        stage.add(change)
        return placement

    def add_and_remove(i: int) -> None:
        stage.remove(catalog.remove(add(i).row, 1 + i, True)[0])

    for i in range(100):
        add(i)
    few = calls(lambda: add_and_remove(1_000_000))
    for i in range(100, 10_000 if at_length() else 1_000):
        add(i)
    assert calls(lambda: add_and_remove(2_000_000)) <= 1.1 * few
