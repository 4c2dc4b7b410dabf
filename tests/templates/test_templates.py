from itertools import combinations
from random import Random

import igraph
import pytest
from hypothesis import given
from hypothesis import strategies as st

from templates.catalog import Catalog, Placement
from templates.graph import (
    Shape,
    canonical_row,
    canonical_shape,
    conjunctive_query,
    executable_query,
    executable_views_query,
    minor,
    templates,
    views_query,
)
from tests.support.conjuncts import conjunct


def placed(*queries: str) -> list[Placement]:
    catalog = Catalog()
    return [catalog.add(conjunct(query), 1, True)[0] for query in queries]


def minors(query: str) -> list[list[tuple[str, int | None]]]:
    """For each side the minor's nodes, as the definition's text and the parent."""
    one = conjunct(query)
    found = []
    for i, side in enumerate(one.sides()):
        reduced = minor(side.pattern, [join[i] for join in one.joins])
        found.append([("".join(map(str, node.definition)), node.parent) for node in reduced.nodes])
    return found


@pytest.mark.parametrize(
    ("query", "sides"),
    [
        # Value-join nodes stay, and their least common ancestors.
        (
            "//r->r/a[./b[./c->c][./d/e->e]][./f->f][./g->g] JOIN {c = u AND e = v, 1 h} //x/y[./z->u]/w->v",
            [
                [("//r/a[./f][./g]/b", None), ("//r/a[./f][./g]/b/c", 0), ("//r/a[./f][./g]/b/d/e", 0)],
                [("//x/y", None), ("//x/y/z", 0), ("//x/y/w", 0)],
            ],
        ),
        # Inner nodes without a branch are contracted, and those with one stay.
        (
            "//a[./b/c[./d->d][./e->e]][./f->f] JOIN {d = x AND e = x AND f = x, 1 h} //x->x",
            [
                [("//a", None), ("//a/b/c", 0), ("//a/b/c/d", 1), ("//a/b/c/e", 1), ("//a/f", 0)],
                [("//x", None)],
            ],
        ),
        # A join on an inner node gets a leaf on the self axis, and a function a leaf of its own.
        (
            "//a->x[./b->y] JOIN {x = u AND y = u, 1 h} //c->u",
            [[("//a", None), ("//a/b", 0), ("//a.", 0)], [("//c", None)]],
        ),
        (
            "//a->x JOIN {lower-case(x) = u AND x = u AND host(lower-case(x)) = u, 1 h} //c->u",
            [[("//a", None), ("//a.[lower-case]", 0), ("//a.", 0), ("//a.[lower-case][host]", 0)], [("//c", None)]],
        ),
        ("//a->x JOIN {lower-case(x) = u, 1 h} //c->u", [[("//a.[lower-case]", None)], [("//c", None)]]),
        # That of a filter is the top of its pattern.
        ("//a/b->x[@k][. = '1']/c", [[('//a[./b[. = "1"][./@k][./c]]', None)]]),
        # Branches of a definition are sorted, and none stands twice.
        *(
            (f"//a{left} JOIN {{x = u, 1 h}} //x->u", [[('//a[. = "1"][not(./d)][./b][./c]/x', None)], [("//x", None)]])
            for left in ("[./c][./b][./c][not(./d)][. = '1']/x->x", "[. = '1'][./b->unused][not(./d)][./c]/x->x")
        ),
    ],
)
def test_minors(query: str, sides: list[list[tuple[str, int | None]]]):
    assert minors(query) == sides


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
    "other stream": Q1.replace("S//blog", "T//blog"),
    "other axis": Q1.replace("S//blog", "S/blog"),
    "other axis below": Q1.replace("./title->t", ".//title->t"),
    "a branch more": Q1.replace("S//book[", "S//book[./isbn]["),
    "a condition more": Q1.replace("S//book[", "S//book[. = 'x']["),
    "a condition on the leaf": Q1.replace("./title->t", "./title->t[not(@k)]"),
    "an attribute": Q1.replace("./title->t", "@title->t"),
    "another name test": Q1.replace("./title->t", "./*:title->t"),
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


def test_a_self_join_has_the_same_variables_on_both_sides_and_slots_of_one_variable_are_not_merged():
    join = "JOIN {x = u AND y = v, 1 h}"
    catalog = Catalog()
    _, change = catalog.add(conjunct(f"S//a[./b->x][./c->y] {join} S//a[./b->u][./c->v]"), 1, True)
    (row,) = change.rows
    assert row.variables[:3] == row.variables[3:]
    assert [len(change.steps), len(change.edges), len(change.values)] == [3, 2, 2]
    one, change = catalog.add(conjunct(f"S//a[./b->x][./b->y] {join} S//c[./d->u][./e->v]"), 1, True)
    _, left1, left2, _, right1, right2 = change.rows[0].variables
    assert left1 == left2 and right1 != right2
    assert len(catalog.templates[one.template].parents) == 6


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


def test_a_single_node_side_is_bound_by_its_self_row():
    (shape,) = templates(1, flat=False)
    assert conjunctive_query(shape, "T").datalog().splitlines()[1:] == [
        "  R_doc(docid1, node1, strval1),",
        "  R_bin(docid1, var1, var1, node1, node1),",
        "  R_docW(docid2, node2, strval1),",
        "  R_binW(docid2, var2, var2, node2, node2),",
        "  R_T(qid, var1, var2, wl)",
    ]
    # A filter reads the batch alone.
    assert conjunctive_query(Shape(1, (None,), ()), "T").datalog().splitlines() == [
        "R_outT(qid, docid1, node1, wl) :-",
        "  R_binW(docid1, var1, var1, node1, node1),",
        "  R_T(qid, var1, wl)",
    ]


@pytest.mark.parametrize("shape", templates(3, flat=False))
def test_each_edge_of_the_shape_is_one_atom_and_over_the_views_only_inner_ones(shape: Shape):
    for query in (conjunctive_query(shape, "T"), executable_query(shape, "T")):
        binary = [(a.args[1], a.args[2]) for a in query.body if a.relation.startswith("R_bin")]
        assert sorted(binary) == sorted((f"var{a + 1}", f"var{b + 1}") for a, b in shape.binary_rows())
        values = [a for a in query.body if a.relation.startswith(("R_doc", "R_vj"))]
        assert len(values) == len(shape.joins) * (1 if values[0].relation == "R_vj" else 2)
        assert set(query.head.args) <= {arg for atom in query.body for arg in atom.args}
    inner = [edge for edge in shape.binary_rows() if edge[1] in shape.parents]
    for query, copies in ((views_query(shape, "T"), 2), (executable_views_query(shape, "T"), 1)):
        binary = [(a.args[1], a.args[2]) for a in query.body if a.relation.startswith("R_bin")]
        assert sorted(binary) == sorted((f"var{a + 1}", f"var{b + 1}") for a, b in inner)
        assert len(query.body) == len(inner) + copies * len(shape.joins) + 1
        assert set(query.head.args) <= {arg for atom in query.body for arg in atom.args}
