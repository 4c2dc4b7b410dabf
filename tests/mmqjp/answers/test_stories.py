"""Stories against brute force: batches, restarts, plans, late documents, backfills; and what a story costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from lxml import etree

from feeds.documents import Document
from join_stage.plans import PLANS
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.service.commands import LOOKUPS
from pattern_stage.stories import StoryDocument, story_id
from tests.generate.documents import SECOND, START
from tests.generate.seeds import seeds
from tests.live.stories import BLOCK, Item, Limits, StoryModel, use
from tests.oracle import stories as oracle
from tests.oracle.stories import Doc


def named(root: Any, tag: str) -> set[Doc]:
    return {
        Doc(int(datetime.fromisoformat(one.get("time")).timestamp()) * SECOND, one.get("stream"), one.get("document"))
        for one in root.iter(tag)
    }


def as_change(output: Output, names: dict[str, oracle.Name]) -> oracle.Change:
    root: Any = etree.fromstring(output.xml)
    assert (root.get("id"), root.get("change")) == (output.story, output.change)
    members, feeds, values = (int(root.get(name, 0)) for name in ("members", "feeds", "n1"))
    merged = frozenset(names[one.get("id")] for one in root.iter("merged"))
    (first,), (latest,) = named(root, "first"), named(root, "latest")
    assert output.t0 == first.time and latest >= first
    listed = named(root, "member")
    assert {*zip(output.documents, output.streams, strict=True)} == {
        (one.id, one.stream) for one in {first, latest} | listed
    }
    counts = members, feeds, values
    return oracle.Change(names[output.story], output.change, output.t1, first, *counts, frozenset(listed), merged)


FILTERED = """;
FROM FILTER{{a_feed != b_feed}} told_pairs PUBLISH mid;
FROM STORIES{{LASTING {lasting} s}} {source} PUBLISH own"""
"""Stories of pairs that an event query chooses, `told_pairs` in parentheses or published as `mid`."""
SOURCES = "mid", "(FROM FILTER{a_feed != b_feed} told_pairs)"

QUERY = """
FROM S//item->a[./k->k] JOIN {{k = l, {window} s}} S//item->b[./k->l]
PUBLISH told STORIES LASTING {lasting} s{having}{tell}
"""
CONDITIONS: dict[str, Callable[[int, int, int], bool] | None] = {
    "": None,
    " HAVING members >= 3": lambda members, feeds, values: members >= 3,
    " HAVING count(DISTINCT ./v) >= 2 AND feeds < 4": lambda members, feeds, values: values >= 2 and feeds < 4,
    " HAVING feeds >= 3 OR count(DISTINCT v) = 1": lambda members, feeds, values: feeds >= 3 or values == 1,
}
TELL = (), (), ("grew",), ("opened", "closed"), ("merged", "closed")


def _query(window: int, lasting: int, having: str, tell: Sequence[str]) -> str:
    said = f" TELL {', '.join(tell)}" if tell else ""
    return QUERY.format(window=window, lasting=lasting, having=having, tell=said)


def story_names(items: Sequence[Item], source: str = "told_pairs") -> dict[str, oracle.Name]:
    """The names of all stories that pairs of documents could open, by id."""
    docs = sorted(one.doc for one in items)
    return {story_id(source, StoryDocument(*a), StoryDocument(*b)): (a, b) for a, b in combinations(docs, 2)}


def in_order(changes: Sequence[oracle.Change]) -> list[oracle.Change]:
    """Changes by story, each with its own in order."""
    return sorted(changes, key=lambda one: one.story)


def world(rng: Random) -> list[Item]:
    keys, count = rng.choice(("ab", "abcd", "abcdefgh")), rng.randint(4, 24)
    most = rng.choice((1, 2))  # with several keys, documents that do not match are brought together by later ones
    times = sorted(rng.randrange(rng.choice((8, 40))) * SECOND for _ in range(count))
    found = []
    for at, time in zip(rng.sample(range(100), count), times, strict=True):
        own = "".join(rng.sample(keys, rng.randint(1, most)))
        feed, value = f"f{rng.randrange(5)}", rng.choice(("x", "y", None))
        found.append(Item(Doc(START + time, "S", f"d{at}"), own, feed, value))
    return sorted(found, key=lambda one: one.doc.time + rng.choice((0, 0, 0, 3, 12)) * SECOND)


def expected(
    items: Sequence[Item], window: int, settle: int, kept: int, apart: bool = False, **asked: Any
) -> list[oracle.Change]:
    """What is told of items that come in this order: a pair is missed if the horizon has passed its end, but for those
    of the documents that are kept when the query comes. With `apart`, pairs are of two feeds."""
    of = {one.doc: one for one in items}
    horizon, horizons = 0, []
    for at, one in enumerate(items):
        horizons.append(horizon if at >= kept else 0)
        horizon = max(horizon, one.doc.time - settle * SECOND)
    pairs = []
    for (_, one), (at, other) in combinations(enumerate(items), 2):
        near = {*one.keys} & {*other.keys} and abs(one.doc.time - other.doc.time) <= window * SECOND
        if near and not (apart and one.feed == other.feed) and max(one.doc, other.doc).time >= horizons[at]:
            pairs.append((one.doc, other.doc))
    return oracle.changes(pairs, until=horizon, feed=lambda d: of[d].feed, value=lambda d: of[d].value, **asked)


def assert_told(rng: Random, engine: str, place: Path | None) -> None:
    items, window, settle = world(rng), rng.choice((3, 9, 30)), rng.choice((0, 2, 10))
    lasting, having = rng.choice((4, 12, 60)), rng.choice(list(CONDITIONS))
    tell = rng.choice(TELL)
    counts, own, source = "DISTINCT" in having, rng.choice((False, True)), rng.choice(SOURCES)
    text = _query(window, lasting, having, tell)
    text += FILTERED.format(lasting=lasting, source=source) if own else ""
    begun = kept = rng.choice((0, 0, len(items) // 2))  # so many documents come before the query, with a backfill
    found: list[Output] = []
    waiting = list(items)
    while waiting:
        options: dict[str, Any] = {"state": place, "plan": rng.choice(PLANS), "settle": settle * SECOND}
        with Session(engine, quiet=True, now=lambda: START, **options) as session:
            for _ in range(rng.choice((1, 3, 30)) if place else 30):
                if begun == 0 and not session.queries():
                    session.subscribe(text, backfill=len(waiting) < len(items))
                count = rng.choice((1, 2, 5, 9))
                count = min(count, begun) if begun else count
                some, waiting = waiting[:count], waiting[count:]
                begun = max(begun - count, 0)
                session.process([one.document() for one in some])
            found = list(session.outputs(-1))
    names = story_names(items)
    asked: dict[str, Any] = {"lasting": lasting * SECOND, "holds": CONDITIONS[having], "tell": tell}
    world_of = items, window, settle, kept
    wanted = expected(*world_of, **asked)
    got = [as_change(one, names) for one in found if one.query == "told"]
    if not counts:
        wanted = [one._replace(values=0) for one in wanted]
    assert in_order(got) == in_order(wanted)
    if own:
        names = story_names(items, "mid" if source == "mid" else "told_pairs")
        wanted = expected(*world_of, True, lasting=lasting * SECOND)
        got = [as_change(one, names) for one in found if one.query == "own"]
        assert in_order(got) == [one._replace(values=0) for one in in_order(wanted)]


@pytest.mark.parametrize("seed", seeds(20, 3_000))
def test_stories_are_those_of_brute_force(seed: int, tmp_path: Path) -> None:
    assert_told(Random(seed), "duckdb", tmp_path / "state" if seed % 3 else None)


def assert_told_live(rng: Random, engine: str, place: Path) -> None:
    items, window, settle = world(rng), rng.choice((3, 9, 30)), rng.choice((0, 2, 10))
    lasting, having, tell = rng.choice((4, 12, 60)), rng.choice(list(CONDITIONS)), rng.choice(TELL)
    text, names = _query(window, lasting, having, tell), story_names(items)
    of = {one.doc: one for one in items}

    def fold(pairs: Sequence[tuple[Item, Item]], until: int, waiting: dict[int, int]) -> list[oracle.Change]:
        asked: dict[str, Any] = {"feed": lambda d: of[d].feed, "value": lambda d: of[d].value, "waiting": waiting}
        asked |= {"lasting": lasting * SECOND, "holds": CONDITIONS[having], "tell": tell}
        found = oracle.changes([(one.doc, other.doc) for one, other in pairs], until=until, **asked)
        return found if "DISTINCT" in having else [one._replace(values=0) for one in found]

    def compare(session: Session, model: StoryModel) -> None:
        assert Counter(as_change(one, names) for one in session.outputs(-1)) == model.told()
        assert {one.name for one in session.registry.subscriptions.values() if one.paused is not None} == model.paused

    limits = Limits(*(rng.choice((None, None, *some)) for some in ((1, 2, 3, 6), (3, 6, 12), (3, 6, 12))))
    model = StoryModel(window * SECOND, settle * SECOND, fold, limits)
    with patch("common.limits.BLOCK", BLOCK):
        use(rng, engine, place, text, items, model, compare)


@pytest.mark.parametrize("seed", seeds(10, 3_000, first=20_000))
def test_stories_in_live_use(seed: int, tmp_path: Path) -> None:
    assert_told_live(Random(seed), "duckdb", tmp_path)


@pytest.mark.spark
@pytest.mark.parametrize("seed", seeds(2, 20))
def test_stories_on_spark_are_those_of_brute_force(seed: int, tmp_path: Path) -> None:
    assert_told(Random(seed), "spark", tmp_path / "state")
    assert_told_live(Random(seed), "spark", tmp_path / "live")


def test_a_story_of_200_documents_has_200_updates_and_lists_each_document_once(tmp_path: Path) -> None:
    text = QUERY.format(window=10**6, lasting=10**6, having="", tell="")
    items = [Item(Doc(START + at * SECOND, "S", f"d{at}"), "k", f"f{at % 7}", None) for at in range(200)]
    with Session("duckdb", state=tmp_path / "state", quiet=True, now=lambda: START, settle=0) as session:
        session.subscribe(text)
        for at in range(0, 200, 9):
            session.process([one.document() for one in items[at : at + 9]])
        session.process([Document("end", "<z/>", time=START + 200 * SECOND)])
        found = list(session.outputs(-1))
        size = sum(len(one.xml) for one in found)
    assert [one.change for one in found] == ["opened", *["grew"] * 198]
    assert sum(one.xml.count("<member") for one in found) == 200 and size < 200 * 1_000
    assert len({one.story for one in found}) == 1 and json.loads(found[-1].to_line())["story"] == found[0].story


def test_each_story_has_an_id_of_its_own() -> None:
    # `p` makes the story of `f` older, so that it is over when `e` comes, which `f` opens another story with.
    known = (("p", 5, "3"), ("f", 10, "19"), ("d", 12, "12"), ("d2", 14, "23"), ("e", 17, "9"), ("z", 999, "z"))
    text = QUERY.format(window=20, lasting=10, having="", tell="")
    with Session("duckdb", quiet=True, now=lambda: START, settle=0) as session:
        session.subscribe(f"{text}; {text.replace('told', 'others')}")
        for id, time, keys in known:
            session.process([Item(Doc(START + time * SECOND, "S", id), keys, "f", None).document()])
        opened = [one.story for one in session.outputs(-1) if one.change == "opened"]
    assert len(opened) == len({*opened}) == 4


def test_a_change_of_a_story_is_reported_once_whichever_pairs_led_to_it(tmp_path: Path) -> None:
    # A backfill pairs `y` with `late` first, which is no member of the story that `y` opens with `x`.
    text = QUERY.format(window=20, lasting=4, having="", tell=" TELL opened")
    known = (("x", 9, "k"), ("y", 10, "k"), ("z", 20, "z"), ("late", 5, "k"), ("end", 30, "z"))
    with Session("duckdb", state=tmp_path / "state", quiet=True, now=lambda: START, settle=0) as session:
        session.subscribe(text)
        for id, time, keys in known:
            if id == "end":
                session.unsubscribe("told")
                session.subscribe(text, backfill=True)
            session.process([Item(Doc(START + time * SECOND, "S", id), keys, "f", None).document()])
        assert [one.documents for one in session.outputs(-1)] == [("x", "y"), ("late", "x")]


@pytest.mark.parametrize("way", ["unsubscribe", "replace"])
def test_what_stories_are_made_of_goes_with_them(way: str, tmp_path: Path) -> None:
    text = QUERY.format(window=9, lasting=9, having="", tell="")
    items = [Item(Doc(START + at * SECOND, "S", f"d{at}"), "k", "f", None) for at in range(6)]
    with Session("duckdb", state=tmp_path / "state", quiet=True, now=lambda: START, settle=0) as session:
        session.subscribe(text)
        session.process([one.document() for one in items[:3]])
        if way == "unsubscribe":
            session.unsubscribe("told")
            assert session.queries() == {} and not session.registry.events.definitions
            session.subscribe(text)
            listed = {row["name"]: row["source"] for row in LOOKUPS["list"](session, {})}
            assert listed["told"] == text.strip() and listed.keys() == {"told", "told.pairs"}
        else:
            session.subscribe(text.replace("9 s}", "8 s}"))
            assert session.queries().keys() == {"told", "told.pairs"}
            session.pause("told.pairs")
            session.resume("told")
            assert all(one.active for one in session.registry.named("told.pairs"))
        session.process([one.document() for one in items[3:]])
        assert [one.documents[-1] for one in session.outputs(-1)][-1] == "d4"
        session.subscribe("FROM S//item PUBLISH told")
        assert session.queries().keys() == {"told"}


def test_events_that_are_no_pairs_of_documents_are_passed_over() -> None:
    text = """DEFINE EVENT B FROM S//b->x (
      a_id := x/@id, a_stream := x/@in, a_time := number(x/@t), a_feed := x/k,
      b_id := '0', b_stream := 'S', b_time := number(x/@u), b_feed := 'f'
    ); FROM STORIES{LASTING 9 s TELL opened, grew} B PUBLISH told"""
    at, known = START + 8 * SECOND, f'in="S" u="{START}"'
    none = [f'<b {known} t="{at}"/>', f'<b id="1" u="{START}" t="{at}"/>', f'<b id="1" {known}/>', "<b/>"]
    none += [f'<b id="1" {known} t="{time}"/>' for time in (at + 1, at - 1, "NaN", "9" * 400)]
    none += [f'<b id="1" in="S" t="{at}" u="{time}"/>' for time in ("", "-" + "9" * 300, "-" + "9" * 400)]
    pair = f'<b id="1" {known} t="{at}"><!-- no feed --></b>'
    with Session("duckdb", quiet=True, now=lambda: START, settle=0) as session:
        session.subscribe(text)
        session.process([Document(f"d{place}", xml, time=at) for place, xml in enumerate([*none, pair])])
        session.process([Document("end", "<z/>", time=at + SECOND)])
        assert session.take_paused() == {}
        assert [one.documents for one in session.outputs(-1)] == [("0", "1")]
