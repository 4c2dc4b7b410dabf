"""Events from witnesses are those of every match by brute force, whatever else is registered."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from pattern_stage.assemble import Witnessed, assemble_events, document_order, nodes_of, told_apart
from pattern_stage.values import Texts
from templates.catalog import Catalog, EventPlacement, place_events
from templates.witness import Witnesses, node_id, plain_node
from tests.generate.blocks import BlockMaker, Name, derived
from tests.generate.documents import chance, document_xml
from tests.generate.seeds import seeds
from tests.oracle.cases import cases
from tests.oracle.values import text_of
from tests.pattern_stage.defined import Defined, defined_events
from xpath_stage.documents import StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage
from xscl.algebra.values import Expr, Number, String, VarPath, is_number
from xscl.event_lower import lower_definition
from xscl.parser import parse_script
from xscl.syntax import DefinedAttribute, EventDefinition

FUNCTIONS = ("lower-case", "normalize-space", "string-length", "host", "date", "words", "substring-after")


def random_definition(rng: Random, name: str = "E", stream: str = "S", most: int = 4) -> EventDefinition:
    """A definition of 1 to `most` attributes."""
    maker = BlockMaker(rng, namespaced=False)
    block, names = maker.block(stream, document_xml(rng, root="a"), bind_root=True)
    attributes = tuple(_attribute(rng, maker, names, f"a{i}") for i in range(rng.randint(1, most)))
    return EventDefinition(name, block, attributes)


def _attribute(rng: Random, maker: BlockMaker, names: Sequence[Name], name: str) -> DefinedAttribute:
    if chance(rng, 5):
        return DefinedAttribute(name, String("x"), False, False)
    if chance(rng, 5):
        return DefinedAttribute(name, Number("7"), True, False)
    chosen = rng.choice(names)
    below = maker.path(chosen.at) if chosen.at is not None and chance(rng, 75) else None
    operand: Expr = VarPath(chosen.var, below[0] if below else ())
    if below and chance(rng, 55):
        return DefinedAttribute(name, operand, False, True)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        operand = derived(rng, FUNCTIONS, operand)
    return DefinedAttribute(name, operand, chance(rng, 25) or is_number(operand), False)


class Stage:
    """A stage 1 with definitions."""

    def __init__(self) -> None:
        self.catalog, self.stage, self.texts = Catalog(), XPathStage(), Texts()

    def add(self, definition: EventDefinition) -> EventPlacement:
        placement, change = place_events(self.catalog, lower_definition(definition, {}))
        self.stage.add(change)
        return placement

    def remove(self, placement: EventPlacement) -> None:
        self.stage.remove(self.catalog.release(placement.variables, placement.edges, placement.values))

    def evaluate(self, xmls: Sequence[bytes]) -> tuple[Witnesses, Witnessed]:
        trees = [StreamDocument(i, "S", 10 * i, 10 * i + 1, parse_document(xml)) for i, xml in enumerate(xmls, 5)]
        joins, events = told_apart(self.stage.evaluate(trees), self.catalog.chains)
        return joins, Witnessed(events, self.stage.groups.edges_of, self.texts)

    def events(self, placement: EventPlacement, witnessed: Witnessed) -> dict[int, list[Defined]]:
        """The events of a definition, by docid."""
        found, _ = assemble_events(placement, witnessed, self.texts)
        columns = [
            [None if x != x else x for x in column.tolist()]
            if column.dtype == np.float64
            else self.texts.texts(column.astype(np.int64))
            for column in found.values
        ]
        assert [column.dtype == np.float64 for column in found.values] == [k == "number" for _, k in placement.schema]
        events: dict[int, list[Defined]] = {}
        for docid, t0, t1, nodes, *values in zip(
            found.docids.tolist(), found.t0.tolist(), found.t1.tolist(), found.nodes.tolist(), *columns, strict=True
        ):
            assert (t0, t1) == (10 * docid, 10 * docid + 1)
            events.setdefault(docid, []).append((tuple(map(plain_node, nodes)), tuple(values)))
        return events


def check(definitions: Sequence[EventDefinition], xmls: Sequence[bytes], stage: Stage | None = None) -> int:
    stage = stage or Stage()
    placements = [stage.add(definition) for definition in definitions]
    _, witnessed = stage.evaluate(xmls)
    count = 0
    for definition, placement in zip(definitions, placements, strict=True):
        found = stage.events(placement, witnessed)
        for docid, xml in enumerate(xmls, 5):
            expected = defined_events(definition, xml)
            events = found.pop(docid, [])
            assert len(events) == len(set(events))
            assert set(events) == expected, (definition, xml)
            assert events == sorted(events, key=lambda event: event[0])
            count += len(expected)
        assert not found
    return count


@pytest.mark.parametrize(("definition", "xml", "expected"), cases("definitions"))
def test_events_of_one_document(definition: str, xml: str, expected: list[str]) -> None:
    (made,) = parse_script(f"DEFINE EVENT E FROM {definition}").definitions
    assert check([made], [xml.encode()]) == len(expected)
    found = [["-" if one is None else text_of(one) for one in values] for _, values in defined_events(made, xml)]
    assert sorted(map(" ".join, found)) == [line or "-" for line in expected]


@pytest.mark.parametrize("seed", seeds(5, 60))
def test_events_are_those_of_every_match(seed: int) -> None:
    rng = Random(seed)
    definitions = [random_definition(rng) for _ in range(12)]
    assert check(definitions, [document_xml(rng, 12, "a") for _ in range(8)]) > 0


def test_a_definition_that_goes_leaves_nothing() -> None:
    rng = Random(1)
    stage = Stage()
    placements = [stage.add(random_definition(rng)) for _ in range(20)]
    rng.shuffle(placements)
    for placement in placements:
        stage.remove(placement)
    assert not stage.catalog.steps and not stage.catalog.edges()
    joins, witnessed = stage.evaluate([document_xml(rng, 12, "a")])
    assert not len(joins.r_bin) and not len(witnessed.bound(placements[0].edges[0]).document)


def test_a_document_with_too_many_events_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    (definition,) = parse_script("DEFINE EVENT E FROM S/a->x (p IN x/b, q IN x/b, r IN x/b)").definitions
    placement = stage.add(definition)
    xmls = [b"<a>" + count * b"<b>1</b>" + b"</a>" for count in (2, 21, 3, 22, 2000)]
    _, witnessed = stage.evaluate(xmls)
    found, crowded = assemble_events(placement, witnessed, stage.texts)
    assert np.bincount(found.docids).tolist()[5:] == [8, 9261, 27]
    assert crowded.tolist() == [8, 9]
    monkeypatch.setattr("pattern_stage.assemble.MOST_BINDINGS", 10)
    assert assemble_events(placement, witnessed, stage.texts)[1].tolist() == [6, 7, 8, 9]


def test_places_are_in_document_order() -> None:
    nodes = np.array([node_id(0), node_id(0, 1), node_id(0, 2, 3), node_id(1), node_id(7, 4095)], np.int64)
    places = document_order(nodes)
    assert places.tolist() == sorted(places.tolist())
    assert [plain_node(node) for node in nodes_of(places).tolist()] == [plain_node(node) for node in nodes.tolist()]
