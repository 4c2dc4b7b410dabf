"""Pages made of what is remembered: after commits, changes of queries, pauses and prunes they are those made anew."""

from itertools import zip_longest
from random import Random

import pytest

from feeds.documents import Document
from join_stage.store.protocol import QuestionRefused
from mmqjp.engine import Session
from mmqjp.tables import lookup
from tests.generate.seeds import at_length, seeds
from tests.mmqjp.web.conftest import NOW
from tests.support.web import browser, site_of

DAY = 86_400_000_000


def queries(rng):
    text = ""
    for _ in range(rng.randint(1, 3)):
        name, days, key = f"q{rng.randrange(5)}", rng.randint(1, 40), rng.choice("km")
        select = rng.choice(["", "SELECT x "])
        text += f"""{select}FROM S//a->x[./{key}->v] FOLLOWED BY {{v = w, {days} d}} S//b->y[./{key}->w]
PUBLISH {name};"""
    return text


def documents(rng, first):
    for n in range(first, first + rng.randint(0, 6)):
        name, k, m = rng.choice("ab"), rng.randrange(3), rng.randrange(2)
        time = NOW - (400 - n) * DAY // 10
        yield Document(f"d{n}", f"<{name}><title>Document {n}</title><k>{k}</k><m>{m}</m></{name}>", time=time)


def shown(client):
    """All pages of queries, with those after them, and the pages of the outputs that they lead to."""
    found, addresses = {}, ["/", "/live", *(f"/q/q{n}" for n in range(5))]
    while addresses:
        address = addresses.pop()
        if address in found:
            continue
        page = client.get(address)
        found[address] = page.status_code, page.text
        for part in page.text.split('href="')[1:]:
            linked = part.partition('"')[0].replace("&amp;", "&")
            if linked.startswith(("/o/", "/q/")) and ("after=" in linked or "group=" in linked):
                addresses.append(linked.partition("#")[0])
    return found


def differing(one, other):
    return [
        (address, [lines for lines in zip_longest(a.splitlines(), b.splitlines()) if lines[0] != lines[1]], x, y)
        for address in one.keys() | other.keys()
        for (x, a), (y, b) in [(one.get(address, (0, "")), other.get(address, (0, "")))]
        if (x, a) != (y, b)
    ]


FEW = {
    "mmqjp.present.recent.OF_FORM": 4,
    "mmqjp.present.recent.MAX_CACHED_FORM_ANSWERS": 9,
    "mmqjp.present.recent.AT_FIRST": 5,
    "mmqjp.present.recent.MOST_NEW": 6,
    "mmqjp.present.recent.FEW": 2,
    "mmqjp.present.recent.DOCUMENTS_AT_FIRST": 3,
    "mmqjp.present.recent.MOST_NEW_DOCUMENTS": 2,
    "mmqjp.present.recent.MOST_NEW_TEXTS": 4,
    "mmqjp.present.recipients.MAX_CACHED_ANSWERS": 7,
    "mmqjp.present.recipients.MOST_NUMBERED": 5,
    "mmqjp.present.recipients.MOST_JUDGED": 9,
    "mmqjp.present.recipients.READ_AT_ONCE": 2,
}
"""Limits with which few things are remembered, so that most are read again."""


@pytest.mark.parametrize("seed", seeds(1, 12, 1))
def test_pages_are_those_of_a_site_that_remembers_nothing(monkeypatch, seed):
    rng, turns = Random(seed), 5 if at_length() else 3
    if seed % 3 == 2:  # members are remembered at first, and then they are too many
        monkeypatch.setattr("mmqjp.present.recent.MOST_MEMBERS", 3)
    if seed % 2:
        of_this_run = {
            "mmqjp.present.recipients.TOGETHER": rng.choice([1, 4]),
            "mmqjp.web.tallies.MOST_OUTPUTS": rng.choice([1, 5]),
            "mmqjp.present.recipients.JUDGED_AT_ONCE": rng.choice([1, 3]),
        }
        for name, value in (FEW | of_this_run).items():
            monkeypatch.setattr(name, value)
    with Session("duckdb", now=lambda: NOW) as engine:
        engine.subscribe(queries(rng), add=True)
        site = site_of(engine, now=lambda: NOW)
        client, number, pages, told = browser(site), 0, 0, []
        committed, is_meanwhile = site.reader.committed, False

        def since(mark):
            """Tells what was committed, and commits something more before that can be read."""
            nonlocal number, is_meanwhile
            found = committed(mark)
            assert found is not None
            told.append(found.rows)
            if is_meanwhile:
                is_meanwhile = False
                some = list(documents(rng, number))
                number += len(some)
                engine.process(some)
            return found

        monkeypatch.setattr(site.matches.recent._news, "_since", since)
        for turn in range(turns):
            some = list(documents(rng, number))
            number += len(some)
            engine.process(some)
            match rng.randrange(6), sorted(engine.queries()):
                case 0, _:
                    engine.subscribe(queries(rng), add=True)
                case (1 | 2 | 3) as what, [*_, _] as names:
                    (engine.unsubscribe, engine.pause, engine.resume)[what - 1](rng.choice(names))
                case 4, _:
                    engine.prune(rng.randint(36, 40) * DAY)
            is_meanwhile = rng.random() < 0.4
            client.get("/live")
            kept, fresh = shown(client), shown(browser(site_of(engine, now=lambda: NOW)))
            assert differing(kept, fresh) == []
            pages += len(fresh)
            if turn % 3 != 1:
                continue
            without = site_of(engine, now=lambda: NOW)
            for name in ("newest", "output", "latest", "outputs_after"):
                monkeypatch.setattr(without.matches.recent, name, lambda *_: None)
            assert differing(kept, shown(browser(without))) == []
        assert pages > 5 * turns and any(told)


@pytest.mark.parametrize("large", [lookup.MEMBERS, "(SELECT max(answer)"], ids=["members", "answers"])
def test_what_is_too_large_to_be_remembered_is_asked_for(monkeypatch, large):
    with Session("duckdb", now=lambda: NOW) as engine:
        engine.subscribe("FROM S//a->x[./k->v] JOIN {v = w, INF} S//b->y[./k->w] PUBLISH q0")
        engine.process(list(documents(Random(1), 0)) + list(documents(Random(2), 100)))
        site, small = site_of(engine, now=lambda: NOW), site_of(engine, now=lambda: NOW)
        ask = small.matches.recent._select

        def refusing(sql):
            if large in sql:
                raise QuestionRefused("the answer has too many bytes")
            return ask(sql)

        for part in (small.matches.recent, small.matches.recent._news):
            monkeypatch.setattr(part, "_select", refusing)
        expected = shown(browser(site))
        assert len(expected) > 5 and differing(expected, shown(browser(small))) == []
