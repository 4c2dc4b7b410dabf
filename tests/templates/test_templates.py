import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.bounds import INFINITE
from templates.catalog import Catalog, Change, Placement, needs_of
from templates.graph import Shape, canonical_row, canonical_shape, conjunctive_query, executable_query, minor
from tests.generate.seeds import AT_LENGTH, at_length, examples
from tests.generate.shapes import templates
from tests.generate.strategies import cases
from tests.support.conjuncts import conjunct, conjuncts_of
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct
from xscl.syntax import Script


def placed(*queries: str) -> list[Placement]:
    catalog = Catalog()
    return [catalog.add(conjunct(query), 1, True)[0] for query in queries]


MINORS = """
(: Value-join nodes stay, and their least common ancestors. :)
//r->r/a[./b[./c->c][./d/e->e]][./f->f][./g->g] JOIN {c = u AND e = v, 1 h} //x/y[./z->u]/w->v
    //r/a[./f][./g]/b, 0 //r/a[./f][./g]/b/c, 0 //r/a[./f][./g]/b/d/e; //x/y, 0 //x/y/z, 0 //x/y/w
(: Inner nodes without a branch are contracted, and those with one stay. :)
//a[./b/c[./d->d][./e->e]][./f->f] JOIN {d = x AND e = x AND f = x, 1 h} //x->x
    //a, 0 //a/b/c, 1 //a/b/c/d, 1 //a/b/c/e, 0 //a/f; //x
(: A join on an inner node gets a leaf on the self axis, and a function a leaf of its own. :)
//a->x[./b->y] JOIN {x = u AND y = u, 1 h} //c->u
    //a, 0 //a/b, 0 //a.; //c
//a->x JOIN {lower-case(x) = u AND x = u AND host(lower-case(x)) = u, 1 h} //c->u
    //a, 0 //a.[lower-case], 0 //a., 0 //a.[lower-case][host]; //c
//a->x JOIN {lower-case(x) = u, 1 h} //c->u
    //a.[lower-case]; //c
(: That of a filter is the top of its pattern. :)
//a/b->x[@k][. = '1']/c
    //a[./b[. = "1"][./@k][./c]]
(: Branches of a definition are sorted, and none stands twice. :)
//a[./c][./b][./c][not(./d)][. = '1']/x->x JOIN {x = u, 1 h} //x->u
    //a[. = "1"][not(./d)][./b][./c]/x; //x
//a[. = '1'][./b->unused][not(./d)][./c]/x->x JOIN {x = u, 1 h} //x->u
    //a[. = "1"][not(./d)][./b][./c]/x; //x
"""
"""Queries, and for each side the nodes of its minor, behind the numbers of their parents."""


def test_minors():
    lines = [line for line in MINORS.strip().splitlines() if not line.startswith("(:")]
    for query, expected in zip(lines[::2], lines[1::2], strict=True):
        one = conjunct(query)
        sides = []
        for i, side in enumerate(one.sides()):
            nodes = minor(side.pattern, [join[i] for join in one.joins]).nodes
            parents = ("" if node.parent is None else f"{node.parent} " for node in nodes)
            definitions = ("".join(map(str, node.definition)) for node in nodes)
            sides.append(", ".join(map("".join, zip(parents, definitions, strict=True))))
        assert "; ".join(sides) == expected.strip()


Q1 = "S//book[./author->a][./title->t] JOIN {a = b AND t = u, 1 h} S//blog[./author->b][./title->u]"


SAME = {
    "other window": Q1.replace("1 h", "2 h"),
    "other operator": Q1.replace("JOIN", "FOLLOWED BY"),
    "other order and names": (
        "S//book[./title->x1][./author->x2] JOIN {x3 = x1 AND x2 = x4, 1 h} S//blog[./author->x4][./title->x3]"
    ),
    "a path for a branch, and a residual": (
        "S//book[./author->a][./title->t] JOIN {a = y AND t = z AND a != 'x', 1 h} S//blog[./author->y]/title->z"
    ),
    "paths on variables": ("SELECT n FROM S//book->n JOIN {n/author = m/author AND n/title = m/title, 1 h} S//blog->m"),
}
OTHERS = {
    "other axis below": Q1.replace("./title->t", ".//title->t"),
    "a condition on the leaf": Q1.replace("./title->t", "./title->t[not(@k)]"),
    "a function": Q1.replace("a = b", "lower-case(a) = b"),
}


@pytest.mark.parametrize("what", [*SAME, *OTHERS])
def test_the_same_conjunctive_query_shares_a_row_and_another_definition_the_template(what: str):
    one, two = placed(Q1, SAME.get(what) or OTHERS[what])
    assert one.template == two.template
    assert (one.row == two.row) is (what in SAME)


def test_a_template_and_its_mirror_image_are_two_and_rows_that_differ_in_which_slots_are_joined():
    b_and_c, d = "S//a[./b->x][./c->y]", "S//d->z"
    one, two = placed(
        *(f"{left} JOIN {{x = z AND y = z, 1 h}} {right}" for left, right in ((b_and_c, d), (d, b_and_c)))
    )
    assert one.template != two.template
    straight = f"{b_and_c} JOIN {{x = u AND y = v, 1 h}} S//a[./b->u][./c->v]"
    one, two = placed(straight, straight.replace("x = u AND y = v", "x = v AND y = u"))
    assert one.template == two.template and one.row != two.row
    # Mirrored slots of one side share a row.
    c_and_b = "S//a[./c->y][./b->x]"
    rows = ((b_and_c, "x = z AND y = z"), (c_and_b, "x = z AND y = z"), (c_and_b, "y = z AND x = z"))
    one, two, three = placed(*(f"{left} JOIN {{{equal}, 1 h}} {d}" for left, equal in rows))
    assert one.row == two.row == three.row and one.slots == ((0, 1, 2), (3,))
    assert two.slots == three.slots == ((0, 2, 1), (3,))
    # A condition above the top of the minor counts.
    one, two, three = placed(*(f"//a{f}/b/c->x JOIN {{x = y, 1 h}} //d->y" for f in ("", "[./k]", "[@k = '1']")))
    assert len({one.row, two.row, three.row}) == 3 and {one.template, two.template, three.template} == {0}


def relabelled(shape: Shape, variables: list[int], rng: Random) -> tuple[Shape, list[int]]:
    """The shape with its nodes in another pre-order, and their variables."""
    order: list[int] = []

    def visit(node: int) -> None:
        order.append(node)
        children = [child for child, parent in enumerate(shape.parents) if parent == node]
        rng.shuffle(children)
        for child in children:
            visit(child)

    visit(0)
    visit(shape.left)
    place = [order.index(node) for node in range(len(order))]
    parents = tuple(None if shape.parents[node] is None else place[int(shape.parents[node] or 0)] for node in order)
    joins = tuple(sorted((place[a], place[b]) for a, b in shape.joins))
    return Shape(shape.left, parents, joins), [variables[node] for node in order]


@given(st.randoms(use_true_random=False))
def test_isomorphic_rows_have_one_canonical_form(rng: Random):
    shape = rng.choice(templates(4, flat=False))
    variables = [rng.randrange(3) for _ in shape.parents]
    other, other_variables = relabelled(shape, variables, rng)
    one, two = canonical_row(shape, variables), canonical_row(other, other_variables)
    assert one.key == two.key
    assert canonical_shape(shape).key == canonical_shape(other).key
    node_at = {position: node for node, position in enumerate(two.position)}
    mapping = [node_at[position] for position in one.position]
    assert [other_variables[node] for node in mapping] == variables
    assert {tuple(sorted((mapping[a], mapping[b]))) for a, b in shape.edges()} == {
        tuple(sorted(edge)) for edge in other.edges()
    }
    changed = list(variables)
    changed[rng.randrange(len(changed))] = 3
    assert canonical_row(shape, changed).key != one.key


@pytest.mark.parametrize("shape", templates(3, flat=False))
def test_each_edge_of_the_shape_is_one_atom_and_over_the_views_only_inner_ones(shape: Shape):
    edges = shape.binary_rows()
    for query, expected, of_join in (
        (conjunctive_query(shape, "T"), edges, 2),
        (executable_query(shape, "T"), edges, 1),
        (executable_query(shape, "T", views=True), [edge for edge in edges if edge[1] in shape.parents], 1),
    ):
        binary = [(a.args[1], a.args[2]) for a in query.body if a.relation.startswith("R_bin")]
        assert sorted(binary) == sorted((f"var{a + 1}", f"var{b + 1}") for a, b in expected)
        assert len(query.body) == len(expected) + of_join * len(shape.joins) + 1
        assert set(query.head.args) <= {arg for atom in query.body for arg in atom.args}


def state(catalog: Catalog) -> object:
    """All that a catalog holds but the templates, of which there are few and which stay."""
    return (
        dict(catalog.steps),
        dict(catalog._step_ids),
        dict(catalog._uses.steps),
        dict(catalog._uses.edges),
        dict(catalog._uses.values),
        {key: (row.variables, row.row()) for key, row in catalog.rows._by_key.items()},
        dict(catalog.rows._by_number),
        dict(catalog.rows._restored),
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
        for held, lost in (
            (self.steps, {step.id for step in gone.steps}),
            (self.edges, gone.edges),
            (self.values, gone.values),
        ):
            assert held >= set(lost)
            held.difference_update(lost)
        for row in gone.rows:
            del self.rows[row.id]
        self.rows |= {row.id: row for row in changed.rows}


@given(st.lists(cases(max_queries=4), min_size=1, max_size=3), st.randoms(use_true_random=False))
@examples(5, AT_LENGTH)
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
    expected: dict[int, tuple[int, bool]] = {}
    for placement, window, ordered in standing:
        largest, all_ordered = expected.get(placement.row, (window, ordered))
        expected[placement.row] = max(largest, window), all_ordered and ordered
    assert {row: (r.window, r.ordered) for row, r in books.rows.items()} == expected  # type: ignore[attr-defined]


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
@examples(5, AT_LENGTH)
def test_restored_rows_stand_for_what_was_added(found: list[tuple[Script, object]], rng: Random):
    queries = [conjunct for script, _ in found for conjunct in conjuncts_of(script)]
    first, books = Catalog(), Books()
    rows = [first.add(query, 1, True)[0].row for query in queries]
    steps = [(str(step.node), step) for _, step in sorted(first.steps.items())]
    again = Catalog({step.key: step.id for _, step in steps}, first.next_step, first.templates)
    keys = [(first.rows[row].template, first.variables_of(row)) for row in rows]
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
            assert change == Change(rows=(again.rows[row].row(),))
            again.remove(row, 1, True)
        books.remove(*again.remove(row, 1, True))
    assert not (books.steps or books.edges or books.values or books.rows)
    assert state(again) == state(Catalog())


@patch("templates.catalog.hash", lambda _: 1, create=True)
def test_steps_whose_hashes_are_equal_stay_apart():
    test_removal_takes_back_exactly_what_adding_brought()
    test_restored_rows_stand_for_what_was_added()


@given(cases(max_queries=4), cases(max_queries=4), st.randoms(use_true_random=False))
@examples(5, AT_LENGTH)
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
    placed_in = {placement.row for placement in placements}
    assert (len(found.rows), sum(found.rows.values())) == (len(placed_in), len(placed_in - rows))
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


def test_adding_and_removing_a_query_costs_the_same_among_few_and_among_many():
    catalog, stage = Catalog(), XPathStage()

    def add(i: int) -> Placement:
        placement, change = catalog.add(numbered(i), 1 + i, True)
        stage.add(change)
        return placement

    def add_and_remove(i: int) -> None:
        stage.remove(catalog.remove(add(i).row, 1 + i, True)[0])

    for i in range(60):
        add(i)
    few = calls(lambda: add_and_remove(1_000_000))
    for i in range(60, 10_000 if at_length() else 400):
        add(i)
    assert calls(lambda: add_and_remove(2_000_000)) <= 1.1 * few
