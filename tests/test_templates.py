"""Minors, templates and the catalog: which queries share variables, rows of R_T and templates, and what removal frees."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import combinations, permutations, product
from random import Random

import igraph
import pytest
from hypothesis import given
from hypothesis import strategies as st

from templates.catalog import INFINITE, Catalog, Change, Placement
from templates.conjunctive import conjunctive_query, executable_query
from templates.enumeration import count_templates, templates
from templates.minor import minor
from templates.template import Shape, canonical_row, canonical_shape
from tests.strategies import cases
from xpath_stage.evaluator import XPathStage
from xscl import parse_script
from xscl.normal import Conjunct, Hidden, normalize
from xscl.syntax import Script


def conjuncts_of(script: Script) -> list[Conjunct]:
    """The conjunctive queries of a script, those of its hidden streams included."""
    found: list[Conjunct] = []

    def collect(conjuncts: tuple[Conjunct, ...]) -> None:
        for conjunct in conjuncts:
            found.append(conjunct)
            for side in conjunct.sides():
                if isinstance(side.hidden, Hidden):
                    collect(side.hidden.conjuncts)

    for query in script.queries:
        collect(normalize(query, dict(script.namespaces)).conjuncts)
    return found


def conjunct(query: str) -> Conjunct:
    """The one conjunctive query of a text."""
    (found,) = conjuncts_of(parse_script(query))
    return found


def placed(*queries: str) -> list[Placement]:
    """Where the catalog puts the queries, one after another."""
    catalog = Catalog()
    return [catalog.add(conjunct(query), 1, True)[0] for query in queries]


# ---------------------------------------------------------------- minors


def minors(query: str) -> list[list[tuple[str, int | None]]]:
    """For each side the minor's nodes, as the definition's text and the parent."""
    one = conjunct(query)
    found = []
    for i, side in enumerate(one.sides()):
        reduced = minor(side.pattern, [join[i] for join in one.joins])
        found.append([("".join(map(str, node.definition)), node.parent) for node in reduced.nodes])
    return found


def test_only_value_join_nodes_and_their_least_common_ancestors_stay():
    text = "//r->r/a[./b[./c->c][./d/e->e]][./f->f][./g->g] JOIN {c = u AND e = v, 1 h} //x/y[./z->u]/w->v"
    left, right = minors(text)
    assert left == [
        ("//r/a[./f][./g]/b", None),
        ("//r/a[./f][./g]/b/c", 0),
        ("//r/a[./f][./g]/b/d/e", 0),
    ]
    assert right == [("//x/y", None), ("//x/y/z", 0), ("//x/y/w", 0)]


def test_inner_nodes_without_a_branch_are_contracted_and_those_with_one_kept():
    (left, _) = minors("//a[./b/c[./d->d][./e->e]][./f->f] JOIN {d = x AND e = x AND f = x, 1 h} //x->x")
    assert [parent for _, parent in left] == [None, 0, 1, 1, 0]
    assert [text for text, _ in left] == ["//a", "//a/b/c", "//a/b/c/d", "//a/b/c/e", "//a/f"]


def test_a_join_on_an_inner_node_gets_a_leaf_on_the_self_axis():
    left, right = minors("//a->x[./b->y] JOIN {x = u AND y = u, 1 h} //c->u")
    assert left == [("//a", None), ("//a/b", 0), ("//a.", 0)]
    assert right == [("//c", None)]


def test_a_function_gets_a_leaf_of_its_own():
    left, right = minors("//a->x JOIN {lower-case(x) = u AND x = u AND host(lower-case(x)) = u, 1 h} //c->u")
    assert left == [
        ("//a", None), ("//a.[lower-case]", 0), ("//a.", 0), ("//a.[lower-case][host]", 0)
    ]  # fmt: skip
    assert right == [("//c", None)]
    (left, _) = minors("//a->x JOIN {lower-case(x) = u, 1 h} //c->u")
    assert left == [("//a.[lower-case]", None)]


def test_a_filter_s_minor_is_the_top_of_its_pattern():
    assert minors("//a/b->x[@k][. = '1']/c") == [[('//a[./b[. = "1"][./@k][./c]]', None)]]


def test_branches_of_a_definition_are_sorted_and_none_stands_twice():
    one = minors("//a[./c][./b][./c][not(./d)][. = '1']/x->x JOIN {x = u, 1 h} //x->u")
    two = minors("//a[. = '1'][./b->unused][not(./d)][./c]/x->x JOIN {x = u, 1 h} //x->u")
    assert one == two == [[('//a[. = "1"][not(./d)][./b][./c]/x', None)], [("//x", None)]]


# ---------------------------------------------------------------- sharing

Q1 = "S//book[./author->a][./title->t] JOIN {a = b AND t = u, 1 h} S//blog[./author->b][./title->u]"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Q1.replace("1 h", "2 h"), id="other window"),
        pytest.param(Q1.replace("JOIN", "FOLLOWED BY"), id="other operator"),
        pytest.param(
            "S//book[./title->x1][./author->x2] JOIN {x3 = x1 AND x2 = x4, 1 h} S//blog[./author->x4][./title->x3]",
            id="other order and names",
        ),
        pytest.param(
            "S//book[./author->a][./title->t] JOIN {a = y AND t = z AND a != 'x', 1 h} S//blog[./author->y]/title->z",
            id="a path for a branch, and a residual",
        ),
        pytest.param(
            "SELECT n FROM S//book->n JOIN {n/author = m/author AND n/title = m/title, 1 h} S//blog->m",
            id="paths on variables",
        ),
    ],
)
def test_the_same_conjunctive_query_shares_a_row(other: str):
    one, two = placed(Q1, other)
    assert (one.row, one.template) == (two.row, two.template)
    assert sorted(one.steps) == sorted(two.steps)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Q1.replace("S//blog", "T//blog"), id="other stream"),
        pytest.param(Q1.replace("S//blog", "S/blog"), id="other axis"),
        pytest.param(Q1.replace("./title->t", ".//title->t"), id="other axis below"),
        pytest.param(Q1.replace("S//book[", "S//book[./isbn]["), id="a branch more"),
        pytest.param(Q1.replace("S//book[", "S//book[. = 'x']["), id="a condition more"),
        pytest.param(Q1.replace("./title->t", "./title->t[not(@k)]"), id="a condition on the leaf"),
        pytest.param(Q1.replace("./title->t", "@title->t"), id="an attribute"),
        pytest.param(Q1.replace("./title->t", "./*:title->t"), id="another name test"),
        pytest.param(Q1.replace("a = b", "lower-case(a) = b"), id="a function"),
    ],
)
def test_another_definition_is_another_variable_in_the_same_template(other: str):
    one, two = placed(Q1, other)
    assert one.template == two.template
    assert one.row != two.row


def test_a_condition_above_the_top_of_the_minor_counts():
    one, two, three = placed(*(f"//a{f}/b/c->x JOIN {{x = y, 1 h}} //d->y" for f in ("", "[./k]", "[@k = '1']")))
    assert len({one.row, two.row, three.row}) == 3
    assert {one.template, two.template, three.template} == {0}


def test_a_template_and_its_mirror_image_are_two():
    narrow = "S//a[./b->x][./c->y] JOIN {x = z AND y = z, 1 h} S//d->z"
    mirror = "S//d->z JOIN {x = z AND y = z, 1 h} S//a[./b->x][./c->y]"
    one, two = placed(narrow, mirror)
    assert one.template != two.template


def test_mirrored_slots_of_one_side_share_a_row():
    one, two, three = placed(
        "S//a[./b->p][./c->q] JOIN {p = r AND q = r, 1 h} S//d->r",
        "S//a[./c->p][./b->q] JOIN {p = r AND q = r, 1 h} S//d->r",
        "S//a[./c->p][./b->q] JOIN {q = r AND p = r, 1 h} S//d->r",
    )
    assert one.row == two.row == three.row
    assert one.slots == ((0, 1, 2), (3,))
    assert two.slots == three.slots == ((0, 2, 1), (3,))


def test_two_slots_with_one_variable_are_not_merged():
    catalog = Catalog()
    one, change = catalog.add(
        conjunct("S//a[./b->x][./b->y] JOIN {x = u AND y = v, 1 h} S//c[./d->u][./e->v]"), 1, True
    )
    (row,) = change.rows
    _, left1, left2, _, right1, right2 = row.variables
    assert left1 == left2
    assert right1 != right2
    assert len(catalog.templates[one.template].parents) == 6


def test_a_self_join_has_the_same_variables_on_both_sides():
    catalog = Catalog()
    _, change = catalog.add(conjunct("S//a[./b->x][./c->y] JOIN {x = u AND y = v, 1 h} S//a[./b->u][./c->v]"), 1, True)
    (row,) = change.rows
    assert row.variables[:3] == row.variables[3:]
    assert len(change.steps) == 3
    assert len(change.edges) == 2
    assert len(change.values) == 2


def test_rows_that_differ_in_which_slots_are_joined_are_two():
    straight = "S//a[./b->x][./c->y] JOIN {x = u AND y = v, 1 h} S//a[./b->u][./c->v]"
    crossed = "S//a[./b->x][./c->y] JOIN {x = v AND y = u, 1 h} S//a[./b->u][./c->v]"
    one, two = placed(straight, crossed)
    assert one.template == two.template
    assert one.row != two.row


# ---------------------------------------------------------------- canonical forms


def relabelled(shape: Shape, variables: list[int], rng: Random) -> tuple[Shape, list[int], list[int]]:
    """The shape with its nodes in another pre-order, their variables, and each old node's new number."""
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
    return Shape(shape.left, parents, joins), [variables[node] for node in order], place


@given(st.randoms(use_true_random=False))
def test_isomorphic_rows_have_one_canonical_form(rng: Random):
    shape = rng.choice(templates(4, flat=False))
    variables = [rng.randrange(3) for _ in shape.parents]
    other, other_variables, place = relabelled(shape, variables, rng)
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
    assert len(place) == len(shape.parents)


def test_no_two_of_the_enumerated_templates_are_isomorphic():
    graphs: dict[tuple[int, int], list[tuple[igraph.Graph, list[int]]]] = {}
    for shape in templates(4, flat=False):
        colours = [2 * (node >= shape.left) + (parent is None) for node, parent in enumerate(shape.parents)]
        graph = igraph.Graph(n=len(colours), edges=shape.edges())
        graphs.setdefault((shape.left, len(colours)), []).append((graph, colours))
    for alike in graphs.values():
        for (one, colours1), (two, colours2) in combinations(alike, 2):
            assert not one.isomorphic_vf2(two, color1=colours1, color2=colours2)


Nested = int | frozenset["Nested"]


def test_the_enumeration_misses_none():
    """Counts the templates of three joins in another way: the least image under all renamings of the leaves."""

    def trees(leaves: frozenset[int]) -> Iterator[Nested]:
        if len(leaves) == 1:
            yield from leaves
            return
        first, *rest = sorted(leaves)
        # The part that holds the first leaf, then a tree over the others: alone or spread under the same node.
        for size in range(len(rest)):
            for mates in combinations(rest, size):
                others = frozenset(rest) - set(mates)
                for one, two in product(trees(frozenset((first, *mates))), trees(others)):
                    yield frozenset((one, two))
                    if isinstance(two, frozenset):
                        yield frozenset((one, *two))

    def renamed(tree: Nested, names: tuple[int, ...]) -> Nested:
        return names[tree] if isinstance(tree, int) else frozenset(renamed(child, names) for child in tree)

    kinds = set()
    for lefts, rights in product(range(1, 4), repeat=2):
        for edges in combinations(list(product(range(lefts), range(rights))), 3):
            if {a for a, _ in edges} != set(range(lefts)) or {b for _, b in edges} != set(range(rights)):
                continue
            for left, right in product(trees(frozenset(range(lefts))), trees(frozenset(range(rights)))):
                images = {
                    (renamed(left, p), renamed(right, q), frozenset((p[a], q[b]) for a, b in edges))
                    for p, q in product(permutations(range(lefts)), permutations(range(rights)))
                }
                kinds.add(frozenset(images))
    assert len(kinds) == count_templates(3, flat=False)


# ---------------------------------------------------------------- conjunctive queries


def test_a_single_node_side_is_bound_by_its_self_row():
    (shape,) = templates(1, flat=False)
    assert conjunctive_query(shape, "T").datalog().splitlines()[1:] == [
        "  R_doc(docid1, node1, strval1),",
        "  R_bin(docid1, var1, var1, node1, node1),",
        "  R_docW(docid2, node2, strval1),",
        "  R_binW(docid2, var2, var2, node2, node2),",
        "  R_T(qid, var1, var2, wl)",
    ]


def test_a_filter_reads_the_batch_alone():
    assert conjunctive_query(Shape(1, (None,), ()), "T").datalog().splitlines() == [
        "R_outT(qid, docid1, node1, wl) :-",
        "  R_binW(docid1, var1, var1, node1, node1),",
        "  R_T(qid, var1, wl)",
    ]


@pytest.mark.parametrize("shape", templates(3, flat=False))
def test_each_edge_of_the_shape_is_one_atom(shape: Shape):
    for query in (conjunctive_query(shape, "T"), executable_query(shape, "T")):
        binary = [(a.args[1], a.args[2]) for a in query.body if a.relation.startswith("R_bin")]
        assert sorted(binary) == sorted((f"var{a + 1}", f"var{b + 1}") for a, b in shape.binary_rows())
        values = [a for a in query.body if a.relation.startswith(("R_doc", "R_vj"))]
        assert len(values) == len(shape.joins) * (1 if values[0].relation == "R_vj" else 2)
        bound = {arg for atom in query.body for arg in atom.args}
        assert set(query.head.args) <= bound


# ---------------------------------------------------------------- adding and removing


def state(catalog: Catalog) -> object:
    """All that a catalog holds but the templates, of which there are few and which stay."""
    return (
        dict(catalog.steps),
        dict(catalog._step_ids),
        +catalog._uses,
        {key: (row.variables, row.row()) for key, row in catalog._rows.items()},
        dict(catalog._row_keys),
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
def test_removal_takes_back_exactly_what_adding_brought(found: list[tuple[Script, object]], rng: Random):
    queries = [conjunct for script, _ in found for conjunct in conjuncts_of(script)]
    queries += [rng.choice(queries) for _ in range(len(queries) // 2)]
    catalog, books = Catalog(), Books()
    standing: list[tuple[Placement, int, bool]] = []
    for query in queries:
        window, ordered = rng.choice((1, 2, 5, INFINITE)), rng.random() < 0.5
        before = state(catalog)
        placement, change = catalog.add(query, window, ordered)
        if rng.random() < 0.3:
            catalog.remove(placement, window, ordered)
            assert state(catalog) == before
            continue
        books.add(change)
        standing.append((placement, window, ordered))
        check_placement(catalog, query, placement)
    rng.shuffle(standing)
    while standing:
        check_books(catalog, books, standing)
        placement, window, ordered = standing.pop()
        books.remove(*catalog.remove(placement, window, ordered))
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
    assert books.steps == {step for placement, _, _ in standing for step in placement.steps} == set(catalog.steps)
    assert books.edges == {edge for placement, _, _ in standing for edge in placement.edges}
    assert books.values == {value for placement, _, _ in standing for value in placement.values}
    windows: dict[int, list[int]] = {}
    orders: dict[int, list[bool]] = {}
    for placement, window, ordered in standing:
        windows.setdefault(placement.row, []).append(window)
        orders.setdefault(placement.row, []).append(ordered)
    assert {row: (r.window, r.ordered) for row, r in books.rows.items()} == {  # type: ignore[attr-defined]
        row: (max(of_row), all(orders[row])) for row, of_row in windows.items()
    }


def test_a_row_s_window_is_the_largest_of_those_that_are_left():
    catalog = Catalog()
    query = conjunct(Q1)
    placement = catalog.add(query, 5, True)[0]
    for window in (9, 5, 9, 7):
        catalog.add(query, window, True)
    seen = []
    for window in (9, 5, 9, 7):
        gone, changed = catalog.remove(placement, window, True)
        assert gone == Change()
        seen.append(changed.rows[0].window)
    assert seen == [9, 9, 7, 5]
    gone, changed = catalog.remove(placement, 5, True)
    assert [row.id for row in gone.rows] == [placement.row]
    assert changed == Change()


def test_known_steps_and_templates_keep_their_numbers():
    first = Catalog()
    kept = first.add(conjunct(Q1), 1, True)[0]
    other = first.add(conjunct("S//a->x JOIN {x = y, 1 h} S//b->y"), 1, True)[0]
    known = {step.key: step.id for step in first.steps.values()}
    again = Catalog(known, first.next_step, first.templates)
    placement = again.add(conjunct("S//a->x JOIN {x = y, 1 h} S//b->y"), 1, True)[0]
    assert (placement.template, placement.steps) == (other.template, other.steps)
    assert again.add(conjunct(Q1), 1, True)[0].steps == kept.steps
    new = again.add(conjunct("S//c->x JOIN {x = y, 1 h} S//c->y"), 1, True)[0]
    assert min(new.steps) >= first.next_step


# ---------------------------------------------------------------- cost


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

    def remove(i: int, placement: Placement) -> None:
        stage.remove(catalog.remove(placement, 1 + i, True)[0])

    def cost(i: int) -> int:
        kept: list[Placement] = []
        return calls(lambda: kept.append(add(i))) + calls(lambda: remove(i, kept[0]))

    for i in range(100):
        add(i)
    few = cost(1_000_000)
    for i in range(100, 10_000):
        add(i)
    many = cost(2_000_000)
    assert many <= 1.1 * few


def test_windows_that_come_and_go_under_a_larger_one_leave_nothing_behind():
    catalog, query = Catalog(), conjunct(Q1)
    placement = catalog.add(query, 100, True)[0]
    catalog.add(query, 1, True)

    def renew(times: int) -> int:
        for _ in range(times):
            catalog.add(query, 50, True)
            catalog.remove(placement, 50, True)
        found = calls(lambda: catalog.remove(placement, 100, True))
        catalog.add(query, 100, True)
        return found

    assert renew(1000) == renew(1)
