"""Why outputs of event queries came about, and why there are none: over stores with random lives, and by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.retrace.events import ShownEvent
from mmqjp.present.output_why import OutputWhy, why_output
from mmqjp.present.why_not import QueryFunnels, explain_missing_output, query_funnel
from mmqjp.present.why_not_result import WhyNot
from mmqjp.tables.lookup import SelectFn
from tests.generate.documents import SECOND, chance
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import DEFINITIONS, END, Doc, batches, definitions, documents, statements
from tests.pattern_stage.defined import defined_events


def select_of(engine: Session) -> SelectFn:
    return lambda sql: engine.question(sql).answer()


def process(engine: Session, arrived: list[Doc]) -> None:
    engine.process([Document(one.id, one.xml, one.stream, (one.t0, one.t1)) for one in arrived])


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_what_is_said_is_what_the_store_has(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, Counter())


@pytest.mark.soak
def test_the_random_lives_have_all_there_is_to_say(tmp_path: Path) -> None:
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
    """Asks about some documents whether they have outputs."""
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
            assert told(one) in events_of(name, arrived[output.documents[one.documents[0]]])
    assert [one.id for one in found.fed] == [one.output for part in filling.parts for one in part.events if one.output]
    for span in filling.spans:
        assert span.duration == output.t1 - output.t0 and span.gap is not None and span.gap > 0


def told(one: ShownEvent) -> tuple[object, ...]:
    return tuple(value for _, value in one.attributes)


def events_of(name: str, document: Doc) -> list[tuple[object, ...]]:
    (definition,) = (one for one in definitions() if one.name == name)
    return [tuple(values) for _, values in defined_events(definition, document.xml)]
