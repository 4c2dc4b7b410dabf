"""Why an output came about: how it is named, what fed it, the events of it in random lives."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import duckdb
import pytest

from feeds.documents import Document
from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.join_trial import JoinTiming, Reason
from mmqjp.explain.terms import Operand
from mmqjp.present import output_why
from mmqjp.present.item import UNKNOWN, Fact, fact_text, filters, reason_facts, timings
from mmqjp.present.output_why import Fed, NoOutput, OutputWhy, why_output
from mmqjp.present.why_not import QueryFunnels, explain_missing_output, query_funnel
from mmqjp.present.why_not_result import WhyNot
from mmqjp.tables.lookup import SelectFn, quote_literal
from tests.generate.documents import SECOND, chance
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import DEFINITIONS, END, Doc, batches, definitions, documents, statements
from tests.pattern_stage.defined import defined_events
from tests.support.places import DATA


def select_of(engine: Session) -> SelectFn:
    return lambda sql: engine.question(sql).answer()


def process(engine: Session, arrived: list[Doc]) -> None:
    engine.process([Document(one.id, one.xml, one.stream, (one.t0, one.t1)) for one in arrived])


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_what_is_said_is_what_the_store_has(seed, tmp_path):
    check(seed, tmp_path, Counter())


@pytest.mark.soak
def test_the_random_lives_have_all_there_is_to_say(tmp_path):
    seen = Counter[str]()
    for seed in range(1, 20):
        check(seed, tmp_path / str(seed), seen)
    kinds = {"output", "event", "late", "unseen", "order", "condition", "filtered", "consumed", "waiting"}
    assert seen.keys() >= kinds


def check(seed: int, state: Path, seen: Counter[str]) -> None:
    rng = Random(seed)
    made, arrived = statements(rng), documents(rng, 30)
    with Session("duckdb", state=state, settle=3 * SECOND, quiet=True) as engine:
        engine.subscribe(DEFINITIONS)
        arriving = list(batches(rng, arrived, 14 * SECOND))
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
    """As many events get past all stages of a query as it has outputs, unless it was paused."""
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
        assert len(found.outputs) == len(there)
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
            (definition,) = (known for known in definitions() if known.name == name)
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


@pytest.mark.parametrize("recent", [0, 1, 100])
def test_an_output_is_named_by_its_id_a_beginning_of_it_or_its_number(recent, chained, monkeypatch):
    monkeypatch.setattr(output_why, "RECENT", recent)
    for output in chained.outputs():
        for asked in (output.id, output.id[:8].upper(), f" {output.seq} "):
            assert why_output(select_of(chained), asked).match.output == output


def test_what_is_no_output_is_said(chained):
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


def test_a_beginning_that_several_ids_have_is_said_with_these():
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


def test_all_that_held_is_told_and_what_fed_the_output(chained):
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


def test_a_chain_has_the_time_of_each_of_its_joins_and_a_filter_without_conditions_an_empty_reason():
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 1 h} S/b/l->y JOIN {y = z, INF} S/c->z; FROM S/d->x")
        xmls = ("<a>v</a>", "<b><l>v</l></b>", "<c>v</c>", "<d/>")
        engine.process([Document(f"d{number}", xml, time=number * MINUTE) for number, xml in enumerate(xmls)])
        found, other = whys(engine)
    assert found.match.reason is not None
    assert found.match.reason.timings == (
        JoinTiming("FOLLOWED BY", HOUR, (0, 0), (MINUTE, MINUTE)),
        JoinTiming("JOIN", None, (0, MINUTE), (2 * MINUTE, 2 * MINUTE)),
    )
    assert [(one.left.node, one.right.node) for one in found.match.reason.joined] == [(0, 1), (1, 0)]
    assert found.match.reason.joined[0].left == Operand("a", "v", (), 0)
    assert other.match.reason == Reason() and facts(reason_facts(other.match)) == ["passes the filter"]


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
    monkeypatch.setattr(output_why, "MAX_REASON_STEPS", 4_000)
    many = "".join(f"<k>{number}</k>" for number in range(1_000))
    script = 'FROM S/a->x[count(./k) > 7][./k = "999"][not(./k = "x")][contains(./k, ./@k)] PUBLISH p'
    with Session("duckdb") as engine:
        engine.subscribe(f"{script}; FROM T/a->x[./k->k] FOLLOWED BY {{k = y, INF}} T/b->y")
        documents = f"<a k=''>{many}</a>", f"<a k='9'><k>999</k>{'<k/>' * 7}</a>"
        engine.process([Document(f"d{number}", xml, time=number) for number, xml in enumerate(documents)])
        large, small = (found.match for found in whys(engine))
        assert large.reason is not None and len(filters(large)) < len(filters(small))
        monkeypatch.setattr(output_why, "MAX_REASON_STEPS", 500)
        engine.process([Document("a", documents[0], "T", 8), Document("b", "<b>999</b>", "T", 9)])
        assert whys(engine)[-1].match.reason is None
    assert sorted(facts(filters(small))) == [
        'contains(k "999", a/@k "9")', "count(./k) > 7", 'k = "999"', 'not(k "999" = "x")',
    ]  # fmt: skip


TEXTS = ("a", "it's", "a\\b'c\\", "\\", "", '"')


def test_texts_are_quoted_as_they_are(chained):
    assert [chained.sql(f"SELECT {quote_literal(text)} AS t")["t"][0].as_py() for text in TEXTS] == [*TEXTS]


@pytest.mark.parametrize("version", [1, 4, *(pytest.param(other, marks=pytest.mark.soak) for other in (3, 5, 6))])
def test_outputs_of_earlier_stores_are_told(tmp_path, version):
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as connection:
        connection.execute((DATA / f"store_v{version}.sql").read_text("utf-8"))
    with Session("duckdb", state=tmp_path) as engine:
        outputs = list(engine.outputs())
        assert outputs
        for output in outputs:
            for asked in (output.id, str(output.seq)):
                assert why_output(select_of(engine), asked).match.output == output


@pytest.mark.soak
def test_spark_says_the_same(spark, tmp_path, chained):
    with Session(spark, state=tmp_path) as engine:
        chain(engine)
        assert whys(engine) == whys(chained)
        assert [engine.sql(f"SELECT {quote_literal(text)} AS t")["t"][0].as_py() for text in TEXTS] == [*TEXTS]
    with Session("duckdb", state=tmp_path, read_only=True) as engine:
        assert whys(engine) == whys(chained)
