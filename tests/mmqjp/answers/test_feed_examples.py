"""The PATTERN examples of docs/patterns.md, as they stand there, told by an engine over small inputs made for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.shown_engine import Engine
from tests.generate.documents import SECOND

PAGE = Path(__file__).parents[3] / "docs" / "patterns.md"
DAY, HOUR = 86_400, 3_600


def statements(text: str) -> str:
    """The block of the page that has a text."""
    blocks: list[str] = re.findall(r"^```xscl\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    (found,) = (one for one in blocks if text in one)
    return found


def told(script: str, name: str, arriving: Iterable[Document]) -> list[tuple[str, float]]:
    """What an engine tells of a query: the values of its elements, and its end in seconds."""
    with Engine("duckdb", settle=None) as engine:
        engine.subscribe(script)
        engine.process(arriving)
        outputs = [one for one in engine.finish() if one.query == name]
    found = [(" ".join(map(str, etree.fromstring(one.xml).itertext())), one.t1 / SECOND) for one in outputs]
    return sorted(found, key=lambda one: (one[1], one[0]))


def elements(stream: str, name: str, *events: tuple[Mapping[str, object], float]) -> list[Document]:
    """Documents of a stream, each an element with these children, at these seconds."""
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
    return elements(
        "advisories",
        "advisory",
        *(({"@id": id, "project": project, "score": score}, day * DAY) for id, project, score, day in given),
    )


def releases(*given: tuple[str, str, str, float]) -> list[Document]:
    return elements(
        "releases",
        "item",
        *(
            ({"channel_url": project, "title": version, "content": notes}, day * DAY)
            for project, version, notes, day in given
        ),
    )


@pytest.mark.parametrize(
    ("days", "found"),
    [((-1, 2, 3), []), ((-1, 15), [("A1 p", 14 * DAY)]), ((-1, 14), []), ((0,), [("A1 p", 14 * DAY)])],
)
def test_2_no_release_for_two_weeks(days: tuple[int, ...], found: list[tuple[str, float]]) -> None:
    """A release on the last day is one, and one at the time of the advisory does not come after it."""
    arriving = [
        *advisories(("A1", "p", 9, 0), ("A2", "p", 3, 0)),
        *releases(*(("p", f"{day}", "", day) for day in days), ("q", "1", "", 1)),
    ]
    assert told(statements("PUBLISH unpatched"), "unpatched", arriving) == found


def test_2_a_feed_has_fallen_silent() -> None:
    posts = elements(
        "S",
        "item",
        *(({"channel_url": f"http://{site}.example/", "title": day}, day * DAY) for site, day in
          (("a", 0), ("a", 10), ("b", 12), ("a", 25), ("b", 24))),
    )  # fmt: skip
    found = told(statements("PUBLISH silent"), "silent", posts)
    assert found == [("a.example 10", 24 * DAY), ("b.example 24", 38 * DAY), ("a.example 25", 39 * DAY)]


def offers(*given: tuple[str, str, float]) -> list[Document]:
    return elements(
        "prices",
        "offer",
        *(
            ({"product": product, "shop": shop, "price": price}, number * HOUR)
            for number, (product, shop, price) in enumerate(given)
        ),
    )


def test_3_a_price_war() -> None:
    given = [("a", 100), ("b", 99), ("b", 98), ("a", 97), ("c", 99), ("b", 90)]
    arriving = offers(*(("x", shop, price) for shop, price in given), ("y", "a", 89), ("x", "a", 89))
    assert told(statements("PUBLISH price_war"), "price_war", arriving) == [("x a b a b 100 90", 5 * HOUR)]


def test_4_a_long_slide_has_turned() -> None:
    given = [("x", 100), ("x", 110), ("y", 100), ("x", 100), ("x", 90), ("x", 80), ("x", 85), ("x", 80)]
    arriving = offers(*((product, "a", price) for product, price in given))
    assert told(statements("PUBLISH turned"), "turned", arriving) == [("x 110 80 85", 6 * HOUR)]


def test_8_the_way_of_a_story() -> None:
    """b links a, c and e link b, d and f link c."""
    links = [("a", ""), ("b", "a"), ("c", "b"), ("e", "b"), ("d", "c"), ("f", "c")]
    arriving = []
    for number, (site, target) in enumerate(links):
        link = f'<link href="http://{target}.example/1"/>' if target else ""
        xml = (
            f"<item><channel_url>http://{site}.example/</channel_url><title>of {site}</title>"
            f"<item_url>http://{site}.example/1</item_url>{link}</item>"
        )
        arriving.append(Document(site, xml, "S", number * HOUR * SECOND))
    ways = [
        (f"of a https://b.example/1 https://c.example/1 https://{last}.example/1 3", at * HOUR)
        for last, at in (("d", 4), ("f", 5))
    ]
    assert told(statements("PUBLISH spreads"), "spreads", arriving) == ways


def test_9_three_signs_in_whatever_order() -> None:
    exploits = elements(
        "exploits", "item", *(({"category": "p", "item_url": f"http://x.example/{day}"}, day * DAY) for day in (1, 2))
    )
    arriving = [*advisories(("A1", "p", 9.5, 3)), *exploits, *releases(*(("p", f"1.{day}", "", day) for day in (5, 6)))]
    assert told(statements("PUBLISH act_now"), "act_now", arriving) == [("A1 p http://x.example/1 1.5", 5 * DAY)]


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        (["1.0-RC1", "1.0-rc2", "1.0", "1.1"], [("p 1.0-rc1 1.0-rc2 1.0", 2 * DAY)]),
        (["1.0-rc1", "1.0-rc2", "0.9 Yanked", "1.0"], []),
        (["1.0-rc1", "1.0"], []),
    ],
)
def test_10_a_release_train_that_held(versions: list[str], found: list[tuple[str, float]]) -> None:
    given = [(version.partition(" ")[0], version.partition(" ")[2]) for version in versions]
    arriving = releases(*(("p", version, notes, day) for day, (version, notes) in enumerate(given)))
    assert told(statements("PUBLISH train"), "train", arriving) == found


@pytest.mark.parametrize(
    ("states", "errors"),
    [
        (["Investigating", "Identified", "Resolved"], 1),
        (["Investigating", "Identified", "Monitoring", "Resolved"], 0),
        (["Investigating", "Resolved"], None),
        (["Investigating", "Identified", "Monitoring"], None),
    ],
)
def test_11_an_incident_although_a_step_was_left_out(states: list[str], errors: int | None) -> None:
    with Engine("duckdb", settle=None) as engine:
        engine.subscribe(statements("PUBLISH incident"))
        engine.process(
            elements("S", "item", *(({"item_url": "u", "title": f"{state}: x"}, at) for at, state in enumerate(states)))
        )
        found = [etree.fromstring(one.xml) for one in engine.finish() if one.query == "incident"]
    assert [int(one.get("errors", "")) for one in found] == ([] if errors is None else [errors])
    assert [[child.tag for child in one] for one in found] == ([] if errors is None else [states])


@pytest.mark.parametrize(("also", "found"), [([], [("Big news http://b.example/1", 5 * DAY)]), ([3], [])])
def test_12_corrected_here_not_there(also: list[int], found: list[tuple[str, float]]) -> None:
    story = [
        Document(
            site,
            f"<item><title>{title}</title><item_url>http://{site}.example/1</item_url>"
            f"<channel_url>http://{site}.example/</channel_url></item>",
            "S",
            at * HOUR * SECOND,
        )
        for site, title, at in (("a", "Big news", 0), ("b", "Big NEWS", 3))
    ]
    corrections = [
        Document(
            f"of {site}",
            f'<item><category>Correction</category><link href="http://{site}.example/1"/></item>',
            "S",
            day * DAY * SECOND,
        )
        for site, day in (("a", 2), *(("b", day) for day in also))
    ]
    assert told(statements("PUBLISH half_corrected"), "half_corrected", [*story, *corrections]) == found
