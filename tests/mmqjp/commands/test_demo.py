"""`mmqjp demo`: the packaged example shows what matched and why."""

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest

from mmqjp.commands.demo import purposes
from mmqjp.commands.serve import run_service
from tests.support.cli import mmqjp as call
from xscl.parser import parse_script


@pytest.fixture(scope="module")
def shown():
    result = call("demo", "--engine", "duckdb")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_every_query_is_shown_with_what_it_is_for(shown):
    assert "11 standing queries, 32 entries of 7 feeds, on duckdb." in shown
    joins = ("same_story", "follow_up", "book_blog", "retitled", "correction", "new_from_author", "bargain")
    for name in (*joins, "nearly_same", "silent", "first_cut", "first_release"):
        assert re.search(rf"^{name}  [A-Z].*", shown, re.MULTILINE)


def test_items_have_time_title_site_and_link_and_the_reason_stands_below(shown):
    ledger = """\
2026-11-04 09:00  The Salt Ledger
                  Lantern Press: new and coming, lantern.example
                  https://lantern.example/books/salt-ledger
2026-11-08 20:15  The Salt Ledger
                  Marginalia: writers at their desks, marginalia.example
                  https://marginalia.example/okafor/the-salt-ledger
         because  same author "Ines Okafor"
                  same title "The Salt Ledger"
"""
    assert ledger in shown
    flat = " ".join(shown.split())
    assert '"Old observatory to reopen in spring" = "Old Observatory to Reopen in Spring" by lower-case' in flat
    assert flat.count('because author = "Ines Okafor"') == 3


def test_what_nearly_came_and_what_did_not_are_shown(shown):
    flat = " ".join(shown.split())
    assert 'near(title "Herring fleet lands record catch", title "Herring fleet lands a record catch", 0.7)' in flat
    assert (
        'nothing with channel_url = channel_url "https://tinkervale.example/" followed within 6 d, until 2026-11-11'
        in flat
    )
    assert 'nothing with category = category "Price cut" preceded it within 1 w' in flat
    (part,) = re.findall(r"^first_release  .*?(?=^\S+  [A-Z]|^\d+ matches)", shown, re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^2026-11-\d\d \d\d:\d\d  (.*)", part, re.MULTILINE)
    first, second = (
        ["Tidewatch takes any certificate", "Tidewatch 4.0.1"],
        ["Logbook shows drafts to strangers", "Logbook 2.2"],
    )
    assert titles == [*first, *second]


def test_it_is_plain_text_of_100_columns_and_ends_with_how_to_go_on(shown):
    *_, count, how, see, serve = shown.rstrip().splitlines()
    assert count.startswith("19 matches.")
    assert how == "  mmqjp run --queries FILE.xscl --documents DIRECTORY --feeds"
    assert (see, serve) == ("See the same in a browser:", "  mmqjp demo --serve")
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) <= 100


def test_it_is_served(monkeypatch):
    """The options with which `mmqjp serve` is called are right, and so is what they make of the packaged example."""
    seen = []

    def look(engine, log, stop):
        seen.append(engine)
        return nullcontext(lambda: False)

    def run(given, beside):
        run_service(replace(given, trigger=None), look)
        seen.append(given)

    monkeypatch.setattr("mmqjp.commands.serve.run_service", run)
    result = call("demo", "--serve", "--engine", "duckdb")
    assert result.exit_code == 0, result.stderr
    assert "outputs=16" in result.stderr
    assert not seen[-1].state.exists()


def test_purpose_is_the_comment_right_above():
    text = "-- of the file\n\n-- one\n-- more\nFROM S//a PUBLISH x;\n\nFROM b PUBLISH y; -- not z\nFROM c PUBLISH z"
    assert purposes(text, parse_script(text)) == {"x": "one more", "y": "", "z": ""}
