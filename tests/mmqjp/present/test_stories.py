"""Stories as people see them, through the product: what outputs list is put together again wherever it is shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from uuid import UUID

import feedparser
import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present.item import ShownMatch, fact_text, link_fact
from mmqjp.present.newest import shown_outputs
from mmqjp.present.output_why import why_output
from mmqjp.present.why_not import explain_missing_output, query_funnel
from mmqjp.syndication.atom import AtomFeed, feed_document
from tests.generate.seeds import seeds
from tests.support.web import browser, script, site_of

HOUR, DAY = 3_600_000_000, 86_400_000_000
QUERY = """FROM S//item->a[./title->t] {} {{similar(t, u, 0.2), 1 d}} S//item->b[./title->u]
PUBLISH told STORIES LASTING 2 d {}"""
TITLES = (
    "tram depot burns", "fire at the tram depot", "dog show in Porto", "Porto dog show prizes",
    "fire at depot, dog show cancelled", "rain", "depot fire: tram lost",
)  # fmt: skip


def item(number: int, title: str, hours: int) -> Document:
    feed = f"<feed_title>Feed {number % 3}</feed_title><feed_url>https://f{number % 3}.example/</feed_url>"
    xml = f"<item><item_url>https://a.example/{number}</item_url><title>{title}</title>{feed}</item>"
    return Document(f"d{number}", xml, time=hours * HOUR)


@contextmanager
def told_stories(
    tell: str = "", operator: str = "JOIN", titles: tuple[str, ...] = TITLES, apart: int = 1
) -> Iterator[Session]:
    with Session("duckdb") as engine:
        engine.subscribe(QUERY.format(operator, tell))
        for number, title in enumerate(titles):
            engine.process([item(number, title, number // apart)])
        engine.process([item(len(titles), "zzz", 24 * 30)])
        yield engine


def shown(engine: Session) -> list[ShownMatch]:
    return [match for match in shown_outputs(engine, engine.outputs()) if match.output.query == "told"]


def select_of(engine: Session):
    return lambda sql: engine.question(sql).answer()


@pytest.mark.parametrize("seed", seeds(3, 200))
def test_all_members_are_found_again_and_a_page_has_each_story_once(seed: int):
    """`members` counts them in each output; and of each story the last output that no other took up is a card."""
    rng = Random(seed)
    words = "tram", "depot", "fire", "dog", "show", "porto", "rain", "storm", "coast"
    titles = tuple(" ".join(rng.sample(words, rng.randrange(1, 4))) for _ in range(24))
    tell = rng.choice(["", "TELL opened, grew, merged, closed", "TELL merged, closed", "HAVING members >= 3 TELL grew"])
    with told_stories(tell, rng.choice(["JOIN", "FOLLOWED BY"]), titles, rng.choice([1, 2])) as engine:
        found, select, taken_up = shown(engine), select_of(engine), set[str]()
        for match in found:
            assert match.story is not None
            whole = why_output(select, match.output.id).match
            assert (len(whole.items), whole.omitted) == (match.story.members, 0)
            assert (whole.items[0].time, whole.items[-1].time) == (match.story.first, match.story.latest)
            assert match.items == (*whole.items[:1], *whole.items[1:][-11:])
            taken_up.update(match.story.merged)
        in_order = sorted(found, key=lambda match: (match.output.t1, match.story.members if match.story else 0))
        last = {match.story.id: match.output.id for match in in_order if match.story}
        expected = [id for story, id in reversed(last.items()) if story not in taken_up]
        matches, cards, place = site_of(engine).matches, list[str](), None
        while True:
            page = matches.cards("told", place, rng.randrange(1, 4))
            cards += [match.output.id for match in page.matches]
            if (place := page.next) is None:
                break
        assert sorted(cards) == sorted(expected)


def test_why_documents_are_in_a_story_or_not():
    with told_stories("TELL opened, grew, merged, closed") as engine:
        select = select_of(engine)
        merged = next(match for match in shown(engine) if match.output.change == "merged")
        found = why_output(select, merged.output.id)
        assert [(link.member, link.other) for link in found.links] == [(1, 0), (3, 2), (4, 1), (4, 2)]
        assert fact_text(link_fact(found.match, 1, 0, found.links[0].why)) == (
            'Feed 1 with Feed 0: similar(title "tram depot burns", title "fire at the tram depot", 0.2)'
        )
        for asked, kind, text in (
            (("d0",), "output", "it is in a story"),
            (("d0", "d3"), "output", "they are in a story"),
            (("d0", "d5"), "words", '"tram depot burns" and "rain" share no words'),
            (("d5",), "words", "share no words"),
            (("d0", "d9"), "document", "no stored document"),
        ):
            told = explain_missing_output(select, "told", asked)
            assert (told.query, told.kind, text in told.message) == ("told", kind, True), told
        funnel = query_funnel(select, "told")
        assert (funnel.query, funnel.outputs) == ("told", 5)
        assert [stage.kind for stage in funnel.funnels[0].stages][-3:] == ["words", "window", "mirror"]
    with told_stories("HAVING members >= 9") as engine:
        told = explain_missing_output(select_of(engine), "told", ("d0", "d1"))
        assert (told.kind, "of HAVING" in told.message) == ("dropped", True)


def test_pages_feeds_and_the_api_have_stories():
    with told_stories("TELL opened, grew, merged, closed") as engine:
        site = site_of(engine)
        pages, api = browser(site), script(site)
        for path in ("/q/told", "/live"):
            page = pages.get(path).text
            assert page.count("data-story=") == 1 and "and 5 more" in page and "6 documents of 3 feeds" in page
        outputs = api.get("/api/v1/queries/told/outputs").json()["outputs"]
        assert [one["change"] for one in outputs] == ["closed", "grew", "merged", "opened", "opened"]
        assert [one["card"]["members"] for one in outputs] == [6, 6, 5, 2, 2] and len(outputs[0]["items"]) == 6
        why = api.get(f"/api/v1/outputs/{outputs[0]['id']}").json()
        assert len(why["links"]) == 5 and "How it came together" in pages.get(f"/o/{outputs[0]['id']}").text
        contents = site.feeds.newest("told")
        assert contents is not None
        document = feed_document(AtomFeed(UUID(int=1).urn, "told", "https://a.example/"), contents.entries, None)
        titles = [entry.title for entry in feedparser.parse(document).entries]
        assert titles == ["tram depot burns", "dog show in Porto"]
