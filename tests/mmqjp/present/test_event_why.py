import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.terms import as_text
from mmqjp.present import item, newest, output_why
from mmqjp.present.item import UNKNOWN, Fact, WhyNot, fact_text, filters, reason_facts, timings
from mmqjp.present.output_why import Fed, NoOutput, OutputWhy, why_output
from mmqjp.present.why_not import MOST_LISTED, QueryFunnels, explain_missing_output, query_funnel
from mmqjp.tables.lookup import SelectFn, quote_literal
from tests.generate.documents import SECOND, chance
from tests.generate.patterns import pattern_world
from tests.generate.seeds import at_length, seeds
from tests.mmqjp.answers import event_world
from tests.mmqjp.answers import test_feed_examples as examples
from tests.mmqjp.answers.event_world import DEFINITIONS, END, Doc
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, ends, script
from tests.mmqjp.answers.test_feed_examples import advisories, corrected, elements, offers, page, releases, statements
from tests.oracle.pattern_syntax import Near, Pattern
from tests.pattern_stage.defined import defined_events


def select_of(engine: Session) -> SelectFn:
    return lambda sql: engine.question(sql).answer()


def process(engine: Session, arrived: list[Doc]) -> None:
    engine.process([Document(one.id, one.xml, one.stream, (one.t0, one.t1)) for one in arrived])


def test_what_is_said_is_what_the_store_has(tmp_path):
    seen = Counter[str]()
    for seed in {*seeds(1, 400), 3_300_000}:  # that one explains an output from before a pause
        check(seed, tmp_path / str(seed), seen)
    kinds = {"output", "event", "late", "unseen", "order", "condition", "filtered", "consumed", "waiting"}
    assert not at_length() or seen.keys() >= kinds


def check(seed: int, state: Path, seen: Counter[str]) -> None:
    rng = Random(seed)
    made, arrived = event_world.statements(rng), event_world.documents(rng, 30)
    with Session("duckdb", state=state, settle=3 * SECOND, quiet=True) as engine:
        engine.subscribe(DEFINITIONS)
        arriving = list(event_world.batches(rng, arrived, 14 * SECOND))
        came = {name: 0 if name in ("one", "two") else rng.randrange(len(arriving) // 2) for name in made}
        known: dict[str, str] = {}
        paused_at, resumed_at = sorted(rng.sample(range(len(arriving)), 2))
        for number, batch in enumerate(arriving):
            for name in (name for name in made if came[name] == number):
                (known[name],) = engine.subscribe(made[name].text(), add=True)
            if number == paused_at and "four" in known:
                engine.pause(known["four"])
            if number == resumed_at and "four" in known and engine.registry.named(known["four"])[0].paused:
                engine.resume(known["four"])
            process(engine, batch)
        ask(engine, rng, list(known.values()), arrived, seen, is_over=False)
        process(engine, [Doc(f"last of {stream}", stream, END, END, b"<none/>") for stream in "ST"])
        ask(engine, rng, list(known.values()), arrived, seen, is_over=True)
        outputs = list(engine.outputs())
        check_funnels(engine, known, outputs)
        for output in rng.sample(outputs, min(len(outputs), 6)):
            found = why_output(select_of(engine), output.id)
            assert OutputWhy.from_dict(json.loads(json.dumps(found.to_dict()))) == found
            check_why(found, {one.id: one for one in outputs}, {one.id: one for one in arrived})


def check_funnels(engine: Session, known: dict[str, str], outputs: list[Output]) -> None:
    for place, name in known.items():
        found = query_funnel(select_of(engine), name)
        assert QueryFunnels.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        (funnel,) = found.funnels
        assert found.outputs == sum(one.query == name for one in outputs)
        if place != "four":
            assert (funnel.found, funnel.incomplete) == (found.outputs, False), (name, funnel)
        assert (funnel.failed is None) == bool(funnel.found)


def ask(
    engine: Session, rng: Random, names: list[str], arrived: list[Doc], seen: Counter[str], *, is_over: bool
) -> None:
    outputs = [(one.query, set(one.documents)) for one in engine.outputs()]
    late = select_of(engine)("SELECT id FROM dead_letters ORDER BY id").column("id").to_pylist()
    for _ in range(10):
        name, some = rng.choice(names), [one.id for one in rng.sample(arrived, rng.choice((1, 2, 2)))]
        if late and chance(rng, 15):
            some = [rng.choice(late)]
        elif outputs and chance(rng, 15):
            name, told = rng.choice(outputs)
            some = sorted(told)
        found = explain_missing_output(select_of(engine), name, some)
        assert WhyNot.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        seen[found.kind] += 1
        there = [documents for query, documents in outputs if query == name and documents.issuperset(some)]
        assert (found.kind == "output") == bool(there), (name, some, found)
        assert len(found.outputs) == min(len(there), MOST_LISTED)
        # Whoever says that they match has found what the kernel has not.
        allowed = () if is_over else ("waiting",)
        assert found.kind not in {"dropped", "too large", "waiting", "paused"} - set(allowed), (name, some, found)
        if found.kind not in ("output", "waiting"):
            assert found.message and found.stages and not found.stages[-1].found


def check_why(found: OutputWhy, outputs: dict[str, Output], arrived: dict[str, Doc]) -> None:
    """The events that are told are those of documents by the definitions, or outputs."""
    output, filling = found.match.output, found.events
    assert filling is not None and found.match.reason is not None, found
    parts = {name.rpartition(" ")[2]: part for part in filling.parts for name in [part.name]}
    assert {place for part in parts.values() for one in part.events for place in one.documents} == set(
        range(len(output.documents))
    )
    for name, part in parts.items():
        (one,) = part.events
        if one.output:
            assert outputs[one.output].query == one.query == name
            assert (outputs[one.output].t0, outputs[one.output].t1) == (one.t0, one.t1)
        else:
            (definition,) = (known for known in event_world.definitions() if known.name == name)
            defined = defined_events(definition, arrived[output.documents[one.documents[0]]].xml)
            assert tuple(value for _, value in one.attributes) in [tuple(values) for _, values in defined]
    assert [one.id for one in found.fed] == [one.output for part in filling.parts for one in part.events if one.output]
    for span in filling.spans:
        assert span.duration == output.t1 - output.t0 and span.gap is not None and span.gap > 0


HOUR = 3_600_000_000
MINUTE = 60_000_000
CHAIN = (
    'FROM S/a->x[./k = "1"][contains(./t, "b")] FOLLOWED BY {x = y, 1 h} S/b->y PUBLISH p; '
    "FROM p//a->l FOLLOWED BY {l = r, INF} S/c->r PUBLISH q"
)


def chain(engine: Session) -> None:
    engine.subscribe(CHAIN)
    xmls = ("<a><k>1</k><t>abc</t></a>", "<b>1abc</b>", "<c>1abc</c>")
    engine.process([Document(f"d{number}", xml, time=number * MINUTE) for number, xml in enumerate(xmls, 1)])


@pytest.fixture(scope="module")
def chained():
    with Session("duckdb") as engine:
        chain(engine)
        yield engine


def test_an_output_is_named_by_its_id_a_beginning_of_it_or_its_number(chained, monkeypatch):
    for recent in (0, 1):
        monkeypatch.setattr(output_why, "RECENT", recent)
        output = next(iter(chained.outputs()))
        for asked in (output.id[:8].upper(), f" {output.seq} "):
            assert why_output(select_of(chained), asked).match.output == output
    for asked, said in (
        ("", "'' is neither"),
        ("it's", '"it\'s" is neither'),
        ("f" * 33, "is neither"),
        ("9" * 40, "is neither"),
        ("f" * 32, "no output has the id ffff"),
        ("77", "no output has the id 77"),
        ("%", "'%' is neither"),
    ):
        with pytest.raises(NoOutput, match=said):
            why_output(select_of(chained), asked)
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x PUBLISH all_of_them")
        engine.process([Document(f"d{number}", "<a/>", time=number) for number in range(200)])
        first = next(o.id[0] for o in engine.outputs() if not o.id[0].isdecimal())
        with pytest.raises(NoOutput, match=f"several outputs have ids that begin with {first}: .* and others"):
            why_output(select_of(engine), first)


def whys(engine: Session) -> list[OutputWhy]:
    return [why_output(select_of(engine), output.id) for output in engine.outputs()]


def facts(found: Iterable[Fact]) -> list[str]:
    return list(map(fact_text, found))


def test_all_that_held_and_what_fed_the_output(chained):
    one, other = whys(chained)
    assert facts(filters(one.match)) == ['contains(t "abc", "b")', 'k = "1"']
    assert facts(reason_facts(one.match)) == ['a = b "1abc"']
    assert facts(timings(one.match)) == ["1 min from the first to the last; FOLLOWED BY allows 1 h"]
    assert (one.fed, other.fed) == ((), (Fed(one.match.output.id, "p", (0, 1)),))
    assert facts(timings(other.match)) == ["2 min from the first to the last; FOLLOWED BY allows any time"]
    assert [item.time for item in other.match.items] == [MINUTE, 2 * MINUTE, 3 * MINUTE]
    assert other.text.endswith("PUBLISH q")
    for found in (one, other):
        assert OutputWhy.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert [chained.sql(f"SELECT {quote_literal(text)} AS t")["t"][0].as_py() for text in TEXTS] == [*TEXTS]


def test_an_output_of_a_removed_query_and_one_whose_documents_have_gone(tmp_path):
    with Session("duckdb", state=tmp_path, now=lambda: 20 * HOUR, lateness=0) as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 6 h} S/b->y PUBLISH gone")
        for xml, hour in {"<a>v</a>": 1, "<b>v</b>": 5}.items():
            engine.process([Document(xml, xml, time=hour * HOUR)])
        engine.unsubscribe("gone")
        engine.subscribe("FROM S/c PUBLISH gone")
        found = why_output(select_of(engine), "0")
        assert found.match.reason is not None and found.match.reason.joined
        assert found.text.startswith("FROM S/a->x FOLLOWED BY")
        engine.subscribe("FROM S/c->x FOLLOWED BY {x = y, 6 h} S/d->y PUBLISH other")
        engine.process([Document("c", "<c/>", time=20 * HOUR)])
        engine.prune(17 * HOUR)
        found = why_output(select_of(engine), "0")
        assert found.match.reason is None and facts(reason_facts(found.match)) == [UNKNOWN]
        assert [item.is_kept for item in found.match.items] == [False, True]


def test_conditions_that_take_too_long_are_left_out_of_a_reason_and_a_document_that_is_too_large_has_none(monkeypatch):
    monkeypatch.setattr(newest, "MAX_REASON_STEPS", 4_000)
    many = "".join(f"<k>{number}</k>" for number in range(1_000))
    script = 'FROM S/a->x[count(./k) > 7][./k = "999"][not(./k = "x")][contains(./k, ./@k)] PUBLISH p'
    with Session("duckdb") as engine:
        engine.subscribe(f"{script}; FROM T/a->x[./k->k] FOLLOWED BY {{k = y, INF}} T/b->y")
        documents = f"<a k=''>{many}</a>", f"<a k='9'><k>999</k>{'<k/>' * 7}</a>"
        engine.process([Document(f"d{number}", xml, time=number) for number, xml in enumerate(documents)])
        large, small = (found.match for found in whys(engine))
        assert large.reason is not None and len(filters(large)) < len(filters(small))
        monkeypatch.setattr(newest, "MAX_REASON_STEPS", 500)
        engine.process([Document("a", documents[0], "T", 8), Document("b", "<b>999</b>", "T", 9)])
        assert whys(engine)[-1].match.reason is None
    assert sorted(facts(filters(small))) == [
        'contains(k "999", a/@k "9")', "count(./k) > 7", 'k = "999"', 'not(k "999" = "x")',
    ]  # fmt: skip


TEXTS = ("a", "it's", "a\\b'c\\", "\\", "", '"')


def check_events(output: Output, why: OutputWhy) -> None:
    """As many events are told as the output has; those that it shows have the values that it shows."""
    assert why.events is not None, (why.text, output)
    names = {name.partition(".")[0] for name in output.nodes}
    assert sum(part.count for part in why.events.parts) == len(names)
    behind = {place for part in why.events.parts for one in part.events for place in one.documents}
    if all(part.count == len(part.events) for part in why.events.parts):
        assert behind == set(range(len(output.documents))) - {
            place for place, id in enumerate(output.documents) if id in output.documents[:place]
        }
    if " RETURN " not in why.text and "ERRORS" not in why.text:
        shown = [
            (int(one.get("t0", "")), int(one.get("t1", "")), {child.tag: child.text or "" for child in one})
            for one in etree.fromstring(output.xml)
        ]
        for one in (one for part in why.events.parts for one in part.events):
            texts = {name: text for name, value in one.attributes if (text := as_text(value)) is not None}
            assert (one.t0, one.t1, texts) in shown


def told(name: str, arriving: list[Document], text: str | None = None) -> list[str]:
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text or statements(f"PUBLISH {name}"))
        engine.process(arriving)
        streams = {one.stream for one in arriving}
        engine.process([Document(f"end {stream}", "<end/>", stream, END) for stream in streams])
        (output,) = (one for one in engine.outputs() if one.query == name)
        why = why_output(select_of(engine), output.id)
        assert why.events is not None
        parts = [item.fact_text(one) for one in item.events(why.events)]
        assert explain_missing_output(select_of(engine), name, output.documents).outputs == (output.id,)
        return [*parts, *map(item.fact_text, item.reason_facts(why.match))]


def test_reasons_of_the_examples():
    found = told("unpatched", [*advisories(("A1", "p", 9, 1)), *releases(("p", "1", "", 1))])
    assert found == [
        'Advisory a  id "A1", project "p", score 9',
        "a.score 9 >= 7",
        "no Release r afterwards in 2 w: r.project = a.project",
    ]
    # b links to a and to another page.
    links = {"a": "", "b": "za", "c": "by", "d": "xc"}
    found = told("spreads", [page(site, site, at, *to) for at, (site, to) in enumerate(links.items())])
    assert [line.partition("target ")[2] for line in found if "target " in line and line.startswith("1970")] == [
        f'"http://{site}.example/1"' for site in "abc"
    ]
    found = told("half_corrected", [*examples.STORY, corrected("a", 2)])
    assert found[0].startswith('Carried s  title "Big news", one "http://a.example/1"')
    assert found[1] == 'Correction c  target "http://a.example/1"'
    assert found[-1] == "no Correction d afterwards in 5 d: d.target = s.two"


def test_letters_that_are_missing_are_counted():
    states = enumerate(("Investigating", "Resolved"))
    reports = elements("S", "item", *(({"item_url": "u", "title": state}, at) for at, state in states))
    found = told("incident", reports, statements("PUBLISH incident").replace("ERRORS <= 1", "ERRORS <= 2"))
    assert [line.partition(" ")[0] for line in found] == ["Investigating", "Resolved", "[incident]", "2"]
    assert found[-1] == "2 letters are missing, of 2 that may be"


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_outputs_of_patterns_are_found_again_and_there_is_none_just_when_something_is_in_the_way(seed):
    rng, found = Random(seed), pattern_world(seed, templates=4, statements=5, most=6)
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        names = engine.subscribe(script(found), add=True)
        made = documents(found)
        for batch in batches(rng, made):
            engine.process(batch)
        engine.process(ends(found))
        every = zip(names, found.statements, strict=True)
        patterns = {name: one for name, one in every if isinstance(one, Pattern | Near)}
        outputs = [one for one in engine.outputs() if one.query in patterns]
        for output in rng.sample(outputs, min(len(outputs), 8)):
            check_events(output, why_output(select_of(engine), output.id))
        for name, statement in patterns.items():
            assert isinstance(statement, Pattern | Near)
            told = [set(one.documents) for one in outputs if one.query == name]
            funnels = query_funnel(select_of(engine), name).funnels  # several may PUBLISH one name
            assert any(funnel.failed is None for funnel in funnels) == bool(told)
            for _ in range(4):
                asked = [one.id for _, one in rng.sample(made, rng.choice((1, 2, 3)))]
                said = explain_missing_output(select_of(engine), name, asked)
                assert (said.kind == "output") == any(one.issuperset(asked) for one in told), (statement.text(), said)
                # Whoever says that they match has found what the kernel has not.
                allowed = {"overlapping"} if statement.apart else set()
                assert said.kind not in {"dropped", "too large", "waiting", "budget", "overlapping"} - allowed, said
                if said.kind not in ("output", "overlapping"):
                    assert said.message and said.stages and not said.stages[-1].found


def asked(text: str, name: str, arriving: list[Document], *wanted: Sequence[int], horizon: int = END) -> list[WhyNot]:
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text)
        engine.process(arriving)
        engine.process([Document(f"end {one}", "<end/>", one, horizon) for one in {doc.stream for doc in arriving}])
        return [
            explain_missing_output(select_of(engine), name, [arriving[place].id for place in places])
            for places in wanted
        ]


PRICE = "DEFINE EVENT Price FROM prices//offer->o (product := o/product, shop := o/shop, price := number(o/price)); "


def war(pattern: str, *wanted: Sequence[int]) -> list[tuple[str, str, str]]:
    offered = [("x", "a", 100), ("x", "b", 99), ("x", "b", 98), ("x", "a", 97)]
    found = asked(f"{PRICE}PATTERN {pattern} PUBLISH war", "war", offers(*offered), *wanted)
    return [(one.kind, one.part, one.message) for one in found]


def test_values_strategies_windows_and_numbers_of_documents():
    cheaper = "[product] AND p[i].price < p[i-1].price AND p[i].shop != p[i-1].shop"
    (found,) = war(f"SEQ(Price+ p[]) WHERE skip_till_next_match {{{cheaper}}} WITHIN 7 d", (1, 2))
    said = 'p[i].shop is "b", p[i-1].shop is "b", of Price (product "x", shop "b", price 98)'
    assert found == ("condition", "p[i].shop != p[i-1].shop", said)
    for strategy, why in (("skip_till_next_match", "match so far takes"), ("strict_contiguity", "nothing may come")):
        (found,) = war(f"SEQ(Price p, Price q) WHERE {strategy} {{q.price < p.price}} WITHIN 7 d", (0, 2))
        assert found[:2] == ("strategy", strategy) and why in found[2]
        assert found[2].startswith('Price (product "x", shop "b", price 99) came before, at 1970-01-01T01:00:00Z')
    pattern = "SEQ(Price p, Price q) WHERE {[product]} WITHIN 90 min HAVING q.price > p.price"
    assert war(pattern, (0, 2), (0, 1)) == [
        ("window", "90 min", "it takes 2 h, and at most 90 min is allowed"),
        ("condition", "HAVING q.price > p.price", "q.price is 99, p.price is 100"),
    ]


def test_an_event_that_must_not_come_and_one_that_does_not():
    text = statements("PUBLISH unpatched")
    arriving = [*advisories(("A1", "p", 9, 1), ("A2", "q", 3, 1)), *releases(("p", "2", "", 2))]
    found, other = asked(text, "unpatched", arriving, [0], [1])
    assert (found.kind, found.part, found.nearest[0].items[0].id) == ("absent", "~(Release r)", arriving[2].id)
    assert other.kind == "condition"
    (found,) = asked(text, "unpatched", arriving[:1], [0], horizon=3 * 86_400 * SECOND)
    assert found.kind == "waiting"


RUN = "(SELECT product, shop, price, 0 AS n FROM Price) FOLD{$1.product = $2.product, , $.n + 1 AS n} Price"


@pytest.mark.parametrize(
    ("query", "places", "kind", "message", "near"),
    [
        ('Price NEXT{$1.shop = "z"} Price', [1], "condition", '$1.shop is "a", of Price (product "x", shop "a", ', [0]),
        ("Price NEXT{$1.price < $2.price} Price", [1], "condition", "$1.price is 5, $2.price is 4, of Price (", [0]),
        ("FILTER{price < 5} Price NEXT Price", [1], "order", 'no Price begins after the end of Price (product "x"', []),
        (RUN, [1, 2, 3], "condition", "$1.product is ", []),
    ],
)
def test_whose_value_is_in_the_way_of_an_operator(query, places, kind, message, near):
    arriving = offers(("x", "a", 5), ("x", "b", 4), ("y", "a", 3), ("z", "a", 2))[: 1 + places[-1]]
    (found,) = asked(f"{PRICE}FROM {query} PUBLISH q", "q", arriving, places)
    assert (found.kind, found.message.startswith(message)) == (kind, True), found
    assert [item.id for one in found.nearest for item in one.items] == [arriving[number].id for number in near]


def test_letters_that_are_missing_and_matches_that_overlap():
    definitions = (f"DEFINE EVENT {name} FROM S/{name.lower()}->x (k := x/k); " for name in "ABC")
    text = "".join(definitions) + "PATTERN SEQ(A, B, C) ERRORS <= 1 WITHIN 1 h NON OVERLAPPING PUBLISH near"
    given = [Document(f"{name}{at}", f"<{name}><k>1</k></{name}>", "S", at * SECOND) for at, name in enumerate("abca")]
    (found,) = asked(text, "near", given[:1], [0])
    assert (found.kind, found.part, found.message) == ("letters", "ERRORS <= 1", "2 letters are missing at least")
    (found,) = asked(text.replace("<= 1", "<= 0"), "near", given[:2], [0])
    assert found.message == "1 letter is missing at least"
    overlapping, disordered = asked(text, "near", given, (1, 2), (3, 2))
    assert overlapping.kind == "overlapping"
    assert disordered.message.startswith("no word has them in this order")
