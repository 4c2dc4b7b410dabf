import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp import demo
from mmqjp.engine import Session
from mmqjp.explain import pictures, plan
from mmqjp.explain.plan import MOST_NAMES, MOST_TEMPLATES, Operation, Sharing, summarise_sharing
from mmqjp.explain.svg import as_file
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.support.cli import printed
from tests.support.places import DATA, ROOT
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {f"{SVG}{name}" for name in ("svg", "title", "desc", "text", "rect", "path", "circle")}
SCRIPTS = [
    *(path.read_text() for path in [ROOT / "examples" / "stories.xscl", *Path(demo.__file__).parent.glob("*.xscl")]),
    *(
        case.partition("\n----\n")[0]
        for path in sorted((DATA / "normal").glob("*.txt"))
        for case in path.read_text().split("\n====\n")
    ),
]


def drawn(text, name="q"):
    return etree.fromstring(pictures.join_graphs((name, text)).encode())


def shown(picture):
    return [element.text for element in picture.iter(f"{SVG}text")]


def curves(picture):
    return len(list(picture.iter(f"{SVG}circle"))) // 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_pictures_are_plain_svg_with_the_joins_of_the_normal_form(script):
    parsed = parse_script(script)
    namespaces = dict(parsed.namespaces)
    for query in parsed.queries:
        picture = drawn(to_xscl(Script((query,), parsed.namespaces)), query.publish or "q1")
        for element in picture.iter():
            assert element.tag in DRAWN
            assert not [name for name in element.attrib if name.startswith("on") or name in ("style", "href")]
        ids = [element.get("id") for element in picture.iter() if element.get("id")]
        assert ids == [picture.get("aria-labelledby"), picture.get("aria-describedby")]
        assert [element.tag for element in picture][:2] == [f"{SVG}title", f"{SVG}desc"]
        normal = normalize(query, namespaces)
        if any(side.hidden for conjunct in normal.conjuncts for side in conjunct.sides()):
            continue  # its inner joins have other names, and the outer disjuncts repeat them
        figures = pictures.join_figures(query, namespaces).figures
        joined = [(len(one.joins), 2) for one in normal.absent] or [
            (len(conjunct.joins), len(conjunct.sides())) for conjunct in normal.conjuncts
        ]
        assert {(len(figure.curves), len(figure.sides)) for figure in figures} == {*joined}


def test_what_a_picture_shows():
    picture = drawn("FROM S//a/b->x[./c/@d->y][./e] JOIN {normalize-space(lower-case(y)) = z AND x/f = z, 2 d} T//g->z")
    texts = shown(picture)
    assert texts[:11] == [*("stream S", "//a/b", "x", "c/@d", "y", "e", "f"), *("stream T", "//g", "z"), "JOIN"]
    assert texts[11:] == ["within 2 d", "in any order", "normalize-space(lower-case)…", "="]
    assert curves(picture) == 2
    picture = drawn('FROM S//a->x[./p > 3] FOLLOWED BY {x = y AND x/q != "<b>", INF} S//b->y')
    assert shown(picture)[-1] == 'and x/q != "<b>"'
    assert picture.find(f"{SVG}desc").text == (
        "Left: stream S, //a as x, where ./p > 3. Right: stream S, //b as y. FOLLOWED BY with no window, the left "
        'before the right. Joined: x = y. And x/q != "<b>".'
    )
    picture = drawn('FROM S//item->i[./author = "Ines Okafor"]', "by_ines")
    assert picture.find(f"{SVG}title").text == "Pattern of by_ines"
    assert shown(picture) == ["stream S", "//item", "i", 'author = "Ines Okafor"']
    arms = " OR ".join(f"x/p{n} = y" for n in range(60))
    texts = shown(drawn(f"FROM S//a->x JOIN {{{arms}, 1 h}} S//b->y"))
    assert f"and {60 - pictures.MOST_FIGURES} more disjuncts" in texts


def test_figures_have_the_names_of_the_query_and_curves_what_is_compared():
    chain = "SELECT x FROM S//a->x[./k->k] FOLLOWED BY {k = y, 1 h} S//b->y[./m->m] FOLLOWED BY {x/t = z, 2 h} S//c->z"
    assert (
        drawn(chain)
        .findtext(f"{SVG}desc")
        .endswith(
            "Joined: k = y. join 2 of 2: Left: each match of join 1, stream S, //a as x, t; stream S, //b as y. "
            "Right: stream S, //c as z. FOLLOWED BY within 2 h, the left before the right. Joined: x/t = z."
        )
    )
    (curve,) = pictures.join_figures(parse_script(chain).queries[0], {}).figures[1].curves
    assert [str(node) for node in curve.ends] == ["t", "//c as z"]
    near = "FROM S//a[./k->k][./x->x] JOIN {near(y, x, 0.7) AND near(k, y, 0.5) AND k != y, 1 h} S//b[./y->y]"
    assert shown(drawn(near))[-3:] == ["near 0.7", "and near(k, y, 0.5)", "and k != y"]
    similar = near.replace("near(k, y, 0.5)", "similar(k, y, 0.8)")
    assert shown(drawn(similar))[-3:] == ["near 0.7", "and similar(k, y, 0.8)", "and k != y"]
    assert shown(drawn(similar.replace("near(y, x, 0.7) AND ", "")))[-2:] == ["similar 0.8", "and k != y"]
    equal = near.replace("k != y", "lower-case(k) = lower-case(y)")
    assert shown(drawn(equal))[-3:] == ["lower-case", "and near(y, x, 0.7)", "and near(k, y, 0.5)"]
    inner = "SELECT n FROM (SELECT lower-case(x) AS n FROM S//a->x) JOIN {n = y, 1 h} S//b->y"
    assert shown(drawn(inner))[-1] == "lower-case = as it is"


def test_nothing_escapes_from_a_text():
    for harm in ("</text><script>alert(1)</script>", ']]> & "" \'', "\x00\x01\x1b[31m\x85\u2028", "\ud7ff\ufffe"):
        allowed = "".join(char for char in harm if char.isprintable()).replace('"', '""')
        text = f'FROM S//a->x[./b = "{allowed}"] JOIN {{x = y, 1 h}} S//c->y'
        picture = pictures.join_graphs((harm, text))
        assert {element.tag for element in etree.fromstring(picture.encode()).iter()} <= DRAWN
        assert not re.search("[\x00-\x1f\x7f-\x9f]", picture)


def test_a_picture_is_bounded():
    many = " AND ".join(f"x{n} {'=' if n < 16 else '!='} y{n}" for n in range(200))
    left = "".join(f"[./{'p' * 300}{n}->x{n}]" for n in range(200))
    right = "".join(f"[./q{n}->y{n}]" for n in range(200))
    picture = drawn(f"FROM S//a{left} JOIN {{{many}, 1 h}} S//b{right}", "n" * 10_000)
    texts = shown(picture)
    assert max(map(len, texts)) < 140
    assert len(picture.find(f"{SVG}desc").text) <= pictures.MOST_DESCRIBED
    assert curves(picture) == 16
    assert texts.count(f"and {201 - pictures.MOST_ROWS:,} more") == 2
    assert f"and {184 - pictures.MOST_CONDITIONS} more conditions" in texts


def test_pictures_together_and_in_files():
    arms = " OR ".join(f"x/p{n} = y" for n in range(60))
    for text, figure in (("FROM S//a", 100), (f"FROM S//a->x JOIN {{{arms}, 1 h}} S//b->y", 1_000)):
        picture = etree.fromstring(pictures.join_graphs(*((f"n{number}", text) for number in range(300))).encode())
        texts = shown(picture)
        assert texts[0] == "n0" and texts[1] in ("stream S", "disjunct 1 of 60")
        drawn_queries = sum(bool(re.fullmatch(r"n\d+", one)) for one in texts)
        assert texts[-1] == f"and {300 - drawn_queries} more queries" and drawn_queries > 1
        assert pictures.MOST_HEIGHT < float(picture.get("height", 0)) < pictures.MOST_HEIGHT + figure
    one, other = pictures.join_graphs(("a", "FROM S//a")), pictures.join_graphs(("b", "FROM S//b"))
    assert one == pictures.join_graphs(("a", "FROM S//a"))
    ids = [re.findall(' id="([^"]*)"', picture) for picture in (one, other)]
    assert not set(ids[0]) & set(ids[1])
    root = etree.fromstring(as_file(pictures.join_graphs(("a", "FROM S//a"))).encode())
    assert "prefers-color-scheme: dark" in str(root[0].text)


def random_plan(chance: random.Random, most: int) -> list[Operation]:
    """Operations that read some of those before them, near ones more often."""
    found: list[Operation] = []
    for number in range(chance.randint(1, most)):
        count = chance.randint(0, 3) if number else 0
        reads = {max(0, number - int(chance.expovariate(0.2)) - 1) for _ in range(count)}
        found.append(Operation(f"key {number}", f"number {number}", (), 1, (), tuple(f"key {one}" for one in reads)))
    return found


def drawn_plan(before, after):
    """The titles and places of boxes, in the order of the picture, and the four points of each curve."""
    root = etree.fromstring(pictures.plan_picture(before, after))
    boxes = []
    for one in root.iter("{*}rect"):
        x, y, width, height = (float(one.get(name, "")) for name in ("x", "y", "width", "height"))
        boxes.append((one.xpath("string(following-sibling::*[1])"), (x, y, x + width, y + height)))
    numbers = [list(map(float, re.findall(r"[-\d.]+", path.get("d", "")))) for path in root.iter("{*}path")]
    return boxes, [list(zip(some[::2], some[1::2], strict=True)) for some in numbers]


def shown_reads(boxes, curves):
    """Who reads what, as the curves lead: through lanes from the right end of a box to the left one of another."""
    entries = {(box[0], (box[1] + box[3]) / 2): title for title, box in boxes}
    found = set()
    for title, box in boxes:
        waiting = [(box[2], (box[1] + box[3]) / 2)]
        while waiting:
            point = waiting.pop()
            for end in (curve[-1] for curve in curves if curve[0] == point):
                if end in entries:
                    found.add((title, entries[end]))
                else:
                    waiting.append(end)
    return found


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_lines_lead_to_what_reads(seed):
    chance = random.Random(seed)
    some_plan = random_plan(chance, 25)
    boxes, curves = drawn_plan(some_plan, [])
    names = [title for title, _ in boxes]
    assert len(set(names)) == len(names) <= len(some_plan)
    titles = {one.key: one.title for one in some_plan}
    reads = {(titles[key], one.title) for one in some_plan for key in one.reads}
    assert shown_reads(boxes, curves) == {edge for edge in reads if set(edge) <= set(names)}


def test_boxes_do_not_overlap_and_a_large_plan_is_cut():
    wide = [Operation(f"w {n}", f"wide {n}", (), 1) for n in range(pictures.MOST)]
    boxes, _ = drawn_plan(random_plan(random.Random(1), 1) + wide, random_plan(random.Random(2), 40))
    assert sum(title.startswith("wide") for title, _ in boxes) == pictures.MOST_IN_COLUMN - 1
    for number, (_, one) in enumerate(boxes):
        for _, other in boxes[number + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


SAME = "FROM S//a->x JOIN {{x = y, {0} h}} S//b->y PUBLISH q{0}"


def shared(text: str) -> Sharing:
    with Session("duckdb") as engine:
        engine.subscribe(text)
        found = summarise_sharing(engine)
    assert Sharing.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found


@pytest.mark.parametrize("seed", seeds(2, 400))
def test_counts_are_those_of_the_tables(seed):
    script, documents = random_case(seed, 8, 6)
    with Session("duckdb") as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        found = summarise_sharing(engine)
        own = engine.sql("SELECT template, variables FROM placements").to_pylist()
        inner = engine.sql("SELECT DISTINCT stream, place, template, variables FROM inner_placements").to_pylist()
        templates = engine.sql("SELECT count(*) AS n FROM templates")["n"].to_pylist()
    subscribers = Counter(row["template"] for row in own + inner)
    rows = Counter(template for template, _ in {(row["template"], tuple(row["variables"])) for row in own + inner})
    assert {one.template: (one.rows, one.subscribers) for one in found.shown} == {
        template: (rows[template], subscribers[template]) for template in rows
    }
    assert [found.templates] == templates
    assert (found.queries, found.rows, found.subscribers) == (len(script.queries), rows.total(), subscribers.total())
    measured = [one.milliseconds or -1.0 for one in found.shown]
    assert measured == sorted(measured, reverse=True)


def test_one_more_row_costs_an_average_of_what_was_measured_together():
    with Session("duckdb") as engine:
        engine.subscribe("; ".join(f"FROM S//a->x JOIN {{x = y, 1 h}} S//b{n}->y" for n in range(4)))
        assert summarise_sharing(engine).shown[0].one_more is None
        engine.process([Document("d", "<r><a>v</a></r>", time=1), Document("e", "<b1>v</b1>", time=2)])
        (template,) = summarise_sharing(engine).shown
    assert template.milliseconds is not None and template.one_more == pytest.approx(template.milliseconds / 4)
    assert (template.matches, template.together) == (1, (template.template,))


def many_templates(count: int) -> str:
    joins = (" AND ".join(f"x{n} = y{n}" for n in range(number + 1)) for number in range(count))
    left = "".join(f"[./l{n}->x{n}]" for n in range(count))
    right = "".join(f"[./r{n}->y{n}]" for n in range(count))
    return "; ".join(
        f"FROM S//{name}{left} JOIN {{{join}, 1 h}} S//b{right} PUBLISH {name}{number}"
        for number, join in enumerate(joins)
        for name in ("c", "d")
    )


def test_what_is_too_much_is_counted():
    found = shared(many_templates(16))
    assert (found.templates, found.rows, len(found.shown)) == (16, 32, min(16, MOST_TEMPLATES))
    assert all(len(one.most_shared) <= plan.MOST_ROWS for one in found.shown)
    assert all(len(row.names) <= MOST_NAMES for one in found.shown for row in one.most_shared)
    picture = etree.fromstring(pictures.sharing_picture(found).encode())
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    left_out = (32 - pictures.NAMES, 32 - pictures.ROWS, 16 - pictures.TEMPLATES)
    assert {f"and {count} more" for count in left_out} <= set(texts)
    assert len(list(picture.iter(f"{SVG}path"))) == pictures.NAMES + pictures.ROWS
    assert {element.tag for element in picture.iter()} <= DRAWN - {f"{SVG}circle"}
    assert not [name for element in picture.iter() for name in element.attrib if name in ("style", "onload", "href")]
    said = picture.findtext(f"{SVG}desc", "")
    assert said.startswith("32 queries") and "32 rows" in said


def test_nothing_escapes_from_a_name_and_an_empty_store_is_drawn():
    with Session("duckdb") as engine:
        empty = summarise_sharing(engine)
    assert empty == Sharing(0, 0, 0, 0, 0, 0, ())
    etree.fromstring(pictures.sharing_picture(empty).encode())
    found = shared("FROM S//a PUBLISH a")
    rows = (replace(found.shown[0].most_shared[0], names=('</text><script>"&\x00' * 50,)),)
    picture = pictures.sharing_picture(replace(found, shown=(replace(found.shown[0], most_shared=rows),)))
    etree.fromstring(picture.encode())
    assert "<script" not in picture and "\x00" not in picture


def test_the_command_reads_a_store(tmp_path):
    state, picture = tmp_path / "state", tmp_path / "sharing.svg"
    with Session("duckdb", state=state) as opened:
        opened.subscribe(f"{SAME.format(1)}; {SAME.format(2)}; FROM S//a->x JOIN {{x = y, 1 h}} S//c->y PUBLISH other")
        expected = summarise_sharing(opened)
    assert Sharing.from_dict(json.loads(printed("sharing", "--state", state, "--json"))) == expected
    assert "3 queries, 2 of them distinct" in printed("sharing", "--state", state, "--svg", picture)
    assert etree.parse(picture).getroot().findtext("{*}title") == "What queries share: queries, rows and templates"
