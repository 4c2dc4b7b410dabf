"""Pictures of join graphs: what they show is the normal form's, and nothing in them can harm a page."""

import re
from pathlib import Path

import pytest
from lxml import etree

import mmqjp.demo
from mmqjp.explain.pictures import (
    MOST_CONDITIONS,
    MOST_DESCRIBED,
    MOST_FIGURES,
    MOST_QUERIES,
    MOST_ROWS,
    join_figures,
    join_graph,
    join_graphs,
)
from mmqjp.explain.svg import as_file, truncate_to_width
from tests.support.places import DATA, ROOT
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {f"{SVG}{name}" for name in ("svg", "title", "desc", "text", "rect", "path", "circle")}
SCRIPTS = [
    *(
        path.read_text()
        for path in [ROOT / "examples" / "stories.xscl", *Path(mmqjp.demo.__file__).parent.glob("*.xscl")]
    ),
    *(
        case.partition("\n----\n")[0]
        for path in sorted((DATA / "normal").glob("*.txt"))
        for case in path.read_text().split("\n====\n")
    ),
]


def queries(script):
    """The queries of a script, each with its namespaces."""
    parsed = parse_script(script)
    return [(query, parsed.namespaces) for query in parsed.queries]


def drawn(text, name="q"):
    """The picture of a query, parsed."""
    return etree.fromstring(join_graph(text, name).encode())


def shown(picture):
    """The texts of a picture."""
    return [element.text for element in picture.iter(f"{SVG}text")]


def curves(picture):
    """How many curves a picture has, by their ends."""
    return len(list(picture.iter(f"{SVG}circle"))) // 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_picture_is_plain_svg(script):
    for query, namespaces in queries(script):
        picture = drawn(to_xscl(Script((query,), namespaces)), query.publish or "q1")
        for element in picture.iter():
            assert element.tag in DRAWN
            assert not [name for name in element.attrib if name.startswith("on") or name in ("style", "href")]
        ids = [element.get("id") for element in picture.iter() if element.get("id")]
        assert ids == [picture.get("aria-labelledby"), picture.get("aria-describedby")]
        assert [element.tag for element in picture][:2] == [f"{SVG}title", f"{SVG}desc"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_curves_are_the_value_joins_of_the_normal_form(script):
    for query, namespaces in queries(script):
        normal = normalize(query, dict(namespaces))
        if any(side.hidden for conjunct in normal.conjuncts for side in conjunct.sides()):
            continue  # its inner joins have other names, and the outer disjuncts repeat them
        found = {(len(figure.curves), len(figure.sides)) for figure in join_figures(query).figures}
        if normal.absent:
            assert found == {(len(one.joins), 2) for one in normal.absent}
        else:
            assert found == {(len(conjunct.joins), len(conjunct.sides())) for conjunct in normal.conjuncts}


def test_a_row_has_the_path_and_the_variable_and_a_curve_its_functions():
    picture = drawn("FROM S//a/b->x[./c/@d->y][./e] JOIN {normalize-space(lower-case(y)) = z AND x/f = z, 2 d} T//g->z")
    texts = shown(picture)
    assert texts[:11] == [*("stream S", "//a/b", "x", "c/@d", "y", "e", "f"), *("stream T", "//g", "z"), "JOIN"]
    assert texts[11:] == ["within 2 d", "in any order", "normalize-space(lower-case)…", "="]
    assert curves(picture) == 2


def test_a_chain_is_a_figure_for_each_join_with_the_names_of_the_query():
    figures = join_figures(
        parse_script(
            "SELECT x FROM S//a->x[./k->k] FOLLOWED BY {k = y, 1 h} S//b->y[./m->m] FOLLOWED BY {x/t = z, 2 h} S//c->z"
        ).queries[0]
    ).figures
    assert [(figure.op, figure.window) for figure in figures] == [("FOLLOWED BY", "1 h"), ("FOLLOWED BY", "2 h")]
    assert figures[1].sides[0].join == 1
    rows = [[(row.text, row.var) for row in block.rows] for block in figures[1].sides[0].blocks]
    assert rows == [[("//a", "x"), ("t", None)], [("//b", "y")]]
    (curve,) = figures[1].curves
    assert (curve.left, curve.right, curve.text) == ((0, 1), (0, 0), "x/t = z")


def test_near_equal_text_is_a_curve_if_there_is_no_equality():
    query = "FROM S//a[./k->k][./x->x] JOIN {near(y, x, 0.7) AND near(k, y, 0.5) AND k != y, 1 h} S//b[./y->y]"
    (figure,) = join_figures(parse_script(query).queries[0]).figures
    assert [(curve.text, curve.label) for curve in figure.curves] == [("near(y, x, 0.7)", "near 0.7")]
    assert figure.conditions == ("near(k, y, 0.5)", "k != y")
    both = query.replace("k != y", "lower-case(k) = lower-case(y)")
    (figure,) = join_figures(parse_script(both).queries[0]).figures
    assert [curve.label for curve in figure.curves] == ["lower-case"] and len(figure.conditions) == 2


def test_an_inner_select_renames():
    query = parse_script("SELECT n FROM (SELECT lower-case(x) AS n FROM S//a->x) JOIN {n = y, 1 h} S//b->y").queries[0]
    (figure,) = join_figures(query).figures
    (curve,) = figure.curves
    assert (curve.left_functions, curve.right_functions, curve.label) == (("lower-case",), (), "lower-case = as it is")


def test_conditions_stand_below_and_in_words():
    picture = drawn('FROM S//a->x[./p > 3] FOLLOWED BY {x = y AND x/q != "<b>", INF} S//b->y')
    assert shown(picture)[-1] == 'and x/q != "<b>"'
    assert picture.find(f"{SVG}desc").text == (
        "Left: stream S, //a as x, where ./p > 3. Right: stream S, //b as y. FOLLOWED BY with no window, the left "
        'before the right. Joined: x = y. And x/q != "<b>".'
    )


def test_a_filter_is_one_outline():
    picture = drawn('FROM S//item->i[./author = "Ines Okafor"]', "by_ines")
    assert picture.find(f"{SVG}title").text == "Pattern of by_ines"
    assert shown(picture) == ["stream S", "//item", "i", 'author = "Ines Okafor"']


@pytest.mark.parametrize(
    "harm", ["</text><script>alert(1)</script>", ']]> & "" \'', "\x00\x01\x1b[31m\x85\u2028", "\ud7ff\ufffe"]
)
def test_nothing_escapes_from_a_text(harm):
    allowed = "".join(char for char in harm if char.isprintable()).replace('"', '""')
    text = f'FROM S//a->x[./b = "{allowed}"] JOIN {{x = y, 1 h}} S//c->y'
    picture = join_graph(text, harm)
    assert {element.tag for element in etree.fromstring(picture.encode()).iter()} <= DRAWN
    assert not re.search("[\x00-\x1f\x7f-\x9f]", picture)


def test_a_picture_is_bounded():
    many = " AND ".join(f"x{n} {'=' if n < 16 else '!='} y{n}" for n in range(200))
    left = "".join(f"[./{'p' * 300}{n}->x{n}]" for n in range(200))
    right = "".join(f"[./q{n}->y{n}]" for n in range(200))
    picture = drawn(f"FROM S//a{left} JOIN {{{many}, 1 h}} S//b{right}", "n" * 10_000)
    texts = shown(picture)
    assert max(map(len, texts)) < 140
    assert len(picture.find(f"{SVG}desc").text) <= MOST_DESCRIBED
    assert curves(picture) == 16
    assert texts.count(f"and {201 - MOST_ROWS:,} more") == 2 and f"and {184 - MOST_CONDITIONS} more conditions" in texts


def test_very_many_disjuncts_are_counted():
    arms = " OR ".join(f"x/p{n} = y" for n in range(60))
    assert f"and {60 - MOST_FIGURES} more disjuncts" in shown(drawn(f"FROM S//a->x JOIN {{{arms}, 1 h}} S//b->y"))


def test_several_queries_stand_below_each_other_with_their_names():
    pictures = etree.fromstring(
        join_graphs([(f"n{number}", "FROM S//a") for number in range(MOST_QUERIES + 5)]).encode()
    )
    texts = shown(pictures)
    assert texts[:4] == ["n0", "stream S", "//a", "n1"] and texts[-1] == "and 5 more queries"


def test_pictures_have_ids_of_their_own_and_the_same_each_time():
    one, other = join_graph("FROM S//a", "a"), join_graph("FROM S//b", "b")
    assert one == join_graph("FROM S//a", "a")
    ids = [re.findall(' id="([^"]*)"', picture) for picture in (one, other)]
    assert not set(ids[0]) & set(ids[1])


def test_a_file_has_colours_for_light_and_dark():
    root = etree.fromstring(as_file(join_graph("FROM S//a", "a")).encode())
    assert "prefers-color-scheme: dark" in str(root[0].text)


@pytest.mark.parametrize(
    ("text", "most", "cut"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("日本語", 5, "日本…"),
        ("日本", 4, "日本"),
        ("a\nb\x00", 9, "a b\ufffd"),
        ("x" * 9999, 2, "x…"),
    ],
)
def test_texts_are_cut_at_columns(text, most, cut):
    assert truncate_to_width(text, most) == cut
