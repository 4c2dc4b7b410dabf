import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.shown_engine import Engine
from tests.generate.documents import SECOND

DEFINITIONS = """
DEFINE EVENT A FROM S//a->a (k := a/@k, n := number(a/@n));
DEFINE EVENT B FROM S//b->b (k := b/@k);
"""


def inside(output: Output) -> str:
    return output.xml.partition(">")[2].removesuffix("</match>")


def test_matches_of_equal_events_with_equal_values_are_one_event():
    """They are two outputs, and two documents: which event is which variable may differ."""
    xmls = ("<x><a k='u' n='1'/></x>", "<x><a k='u' n='2.5'/><a k='v'/></x>", "<end/>")
    for item, values in (("a.k", ["u"]), ("a.n", ["1", "2.5"])):
        with Session("duckdb", settle=0, quiet=True) as engine:
            engine.subscribe(f"""{DEFINITIONS}
                PATTERN SEQ(SET(A a, A b)) WHERE {{ [k] }} WITHIN 1 min RETURN {item} AS x PUBLISH both;
                SELECT x AS y FROM both PUBLISH events;
                SELECT x FROM both//match->m[./x->x] PUBLISH documents
                """)
            for at, xml in zip((1, 2, 100), xmls, strict=True):
                engine.process([Document(f"d{at}", xml, "S", at * SECOND)])
            found = list(engine.outputs())
        counts = Counter(one.query for one in found)
        assert counts == {"both": 2, "events": len(values), "documents": 2}
        assert len({one.id for one in found}) == len(found)
        assert sorted(inside(one) for one in found if one.query == "events") == [f"<y>{value}</y>" for value in values]


def test_silence_decides_what_did_not_happen(tmp_path):
    """Nothing else comes, and the store is closed in between."""
    start = now = 10**9 * SECOND

    def opened() -> Session:
        timing = {"lateness": 0, "idle_after": 5 * SECOND, "now": lambda: now}
        return Session("duckdb", state=tmp_path, settle=0, quiet=True, **timing)  # type: ignore[arg-type]

    with opened() as engine:
        engine.subscribe(
            f"""{DEFINITIONS}
            PATTERN SEQ(A a, ~(B b)) WITHIN 30 s RETURN a.n AS n;
            PATTERN SEQ(SET(A+ a[])) WITHIN 30 s RETURN a[1].n AS n EARLIEST MAXIMAL;
            PATTERN SEQ(SET(A a), ~(B b)) WITHIN 30 s RETURN a.n AS n
            """
        )
        engine.process([Document("d1", "<a k='u' n='7'/>", "S", start)])
        now += 20 * SECOND
        engine.pass_time()
        assert not list(engine.outputs())
    with opened() as engine:
        assert not engine.pass_time() and not list(engine.outputs())
        now += 60 * SECOND
        assert engine.pass_time()
        assert [(inside(one), one.t1) for one in engine.outputs()] == [("<n>7</n>", start + 30 * SECOND)] * 3
        now += 60 * SECOND
        assert not engine.pass_time()


PAGE = Path(__file__).parents[3] / "docs" / "patterns.md"
DAY, HOUR = 86_400, 3_600


def statements(text: str) -> str:
    blocks: list[str] = re.findall(r"^```xscl\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    (found,) = (one for one in blocks if text in one)
    return found


def told(script: str, name: str, arriving: Iterable[Document]) -> list[tuple[str, float]]:
    """The outputs of a query: the values of the elements, and the end in seconds."""
    with Engine("duckdb", settle=None) as engine:
        engine.subscribe(script)
        engine.process(arriving)
        outputs = [one for one in engine.finish() if one.query == name]
    found = [(" ".join(map(str, etree.fromstring(one.xml).itertext())), one.t1 / SECOND) for one in outputs]
    return sorted(found, key=lambda one: (one[1], one[0]))


def elements(stream: str, name: str, *events: tuple[Mapping[str, object], float]) -> list[Document]:
    made = []
    for number, (values, at) in enumerate(events):
        root = etree.Element(name)
        for tag, value in values.items():
            if tag.startswith("@"):
                root.set(tag[1:], str(value))
            else:
                etree.SubElement(root, tag).text = str(value)
        text = etree.tostring(root, encoding="unicode")
        made.append(Document(f"{stream}-{number}", f"<root>{text}</root>", stream, round(at * SECOND)))
    return made


def advisories(*given: tuple[str, str, float, float]) -> list[Document]:
    events = (({"@id": id, "project": project, "score": score}, day * DAY) for id, project, score, day in given)
    return elements("advisories", "advisory", *events)


def releases(*given: tuple[str, str, str, float]) -> list[Document]:
    keys = ("channel_url", "title", "content")
    return elements("releases", "item", *((dict(zip(keys, one[:3], strict=True)), one[3] * DAY) for one in given))


def offers(*given: tuple[str, str, float]) -> list[Document]:
    keys = ("product", "shop", "price")
    events = ((dict(zip(keys, one, strict=True)), number * HOUR) for number, one in enumerate(given))
    return elements("prices", "offer", *events)


def page(site: str, title: object, hours: float, *links: str) -> Document:
    xml = (
        f"<item><channel_url>http://{site}.example/</channel_url><title>{title}</title>"
        f"<item_url>http://{site}.example/1</item_url>"
        + "".join(f'<link href="http://{to}.example/1"/>' for to in links)
        + "</item>"
    )
    return Document(f"{site}{title}", xml, "S", round(hours * HOUR * SECOND))


def corrected(site: str, days: float) -> Document:
    xml = f'<item><category>Correction</category><link href="http://{site}.example/1"/></item>'
    return Document(f"of {site}", xml, "S", round(days * DAY * SECOND))


def unpatched(*days: float) -> list[Document]:
    released = (("p", f"{day}", "", day) for day in days)
    return [*advisories(("A1", "p", 9, 0), ("A2", "p", 3, 0)), *releases(*released, ("q", "1", "", 1))]


def train(*versions: str) -> list[Document]:
    parts = (version.partition(" ") for version in versions)
    return releases(*(("p", version, notes, day) for day, (version, _, notes) in enumerate(parts)))


STORY = [page("a", "Big news", 0), page("b", "Big NEWS", 3)]
EXPLOITS = elements(
    "exploits", "item", *(({"category": "p", "item_url": f"http://x.example/{day}"}, day * DAY) for day in (1, 2))
)
WAR = [("a", 100), ("b", 99), ("b", 98), ("a", 97), ("c", 99), ("b", 90)]
SLIDE = [("x", 100), ("x", 110), ("y", 100), ("x", 100), ("x", 90), ("x", 80), ("x", 85), ("x", 80)]


@pytest.mark.parametrize(
    ("name", "arriving", "found"),
    [
        ("unpatched", unpatched(-1, 2, 3), []),
        ("unpatched", unpatched(-1, 15), [("A1 p", 14 * DAY)]),
        ("unpatched", unpatched(-1, 14), []),  # a release on the last day is one
        ("unpatched", unpatched(0), [("A1 p", 14 * DAY)]),  # one at the time of the advisory does not come after it
        (
            "silent",
            [page(site, day, day * 24) for site, day in (("a", 0), ("a", 10), ("b", 12), ("b", 24), ("a", 25))],
            [("a.example 10", 24 * DAY), ("b.example 24", 38 * DAY), ("a.example 25", 39 * DAY)],
        ),
        (
            "price_war",
            offers(*(("x", shop, price) for shop, price in WAR), ("y", "a", 89), ("x", "a", 89)),
            [("x a b a b 100 90", 5 * HOUR)],
        ),
        ("turned", offers(*((product, "a", price) for product, price in SLIDE)), [("x 110 80 85", 6 * HOUR)]),
        (
            "spreads",  # b links a, c and e link b, d and f link c
            [
                page("a", "of a", 0),
                *(page(link[1], "", n, link[0]) for n, link in enumerate(("ab", "bc", "be", "cd", "cf"), 1)),
            ],
            [
                (f"of a https://b.example/1 https://c.example/1 https://{last}.example/1 3", at * HOUR)
                for last, at in (("d", 4), ("f", 5))
            ],
        ),
        (
            "act_now",
            [*advisories(("A1", "p", 9.5, 3)), *EXPLOITS, *releases(*(("p", f"1.{day}", "", day) for day in (5, 6)))],
            [("A1 p http://x.example/1 1.5", 5 * DAY)],
        ),
        ("train", train("1.0-RC1", "1.0-rc2", "1.0", "1.1"), [("p 1.0-rc1 1.0-rc2 1.0", 2 * DAY)]),
        ("train", train("1.0-rc1", "1.0-rc2", "0.9 Yanked", "1.0"), []),
        ("train", train("1.0-rc1", "1.0"), []),
        ("half_corrected", [*STORY, corrected("a", 2)], [("Big news http://b.example/1", 5 * DAY)]),
        ("half_corrected", [*STORY, corrected("a", 2), corrected("b", 3)], []),
    ],
)
def test_examples(name, arriving, found):
    assert told(statements(f"PUBLISH {name}"), name, arriving) == found


def test_11_an_incident_although_a_step_was_left_out():
    steps = ("Investigating", "Identified", "Monitoring", "Resolved")
    cases = {"full": steps, "one less": (*steps[:2], steps[3]), "two less": (steps[0], steps[3]), "open": steps[:3]}
    made = [({"item_url": url, "title": f"{state}: x"}, at) for url in cases for at, state in enumerate(cases[url])]
    with Engine("duckdb", settle=None) as engine:
        engine.subscribe(statements("PUBLISH incident"))
        engine.process(elements("S", "item", *made))
        found = [etree.fromstring(one.xml) for one in engine.finish() if one.query == "incident"]
    told = sorted((one.get("errors"), tuple(child.tag for child in one)) for one in found)
    assert told == [("0", cases["full"]), ("1", cases["one less"])]
