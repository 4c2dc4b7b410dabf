"""The oracle's events of documents, and which documents are late, against hand-checked cases."""

from __future__ import annotations

import pytest

from tests.oracle.bindings import Stored
from tests.oracle.cases import docs
from tests.oracle.event_cases import SECOND, brief
from tests.oracle.event_documents import in_time
from tests.oracle.events import event
from tests.pattern_stage.defined import defined_events
from xscl.parser import parse_script


def stored(text: str) -> list[Stored]:
    """Documents in the notation of tests/oracle/cases.py."""
    return [Stored(one.stream, one.id, one.t0, one.t1, one.xml, ((one.id, one.stream),)) for one in docs(text)]


def of(block: str, attributes: str, text: str) -> list[str]:
    """The events of documents."""
    (definition,) = parse_script(f"DEFINE EVENT E FROM {block} ({attributes})").definitions
    names = [one.name for one in definition.attributes]
    return brief(
        event(dict(zip(names, values, strict=True)), document.t0, document.t1, [document.id, nodes])
        for document in stored(text)
        if document.stream == definition.block.stream
        for nodes, values in defined_events(definition, document.xml)
    )


ITEM = "<r><item><t>x</t><t>y</t><n>1.50</n><k h='1'/><k h='2'/></item><item><n>z</n></item></r>"


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ("t := i/t", ["t=- [1,1]", "t=x [1,1]"]),
        ("n := number(i/n)", ["n=- [1,1]", "n=1.5 [1,1]"]),
        ("n := i/n, t := i/t", ["n=1.50 t=x [1,1]", "n=z t=- [1,1]"]),
        ("t IN i/t", ["t=x [1,1]", "t=y [1,1]"]),
        ("t IN i/t, h IN i/k/@h", ["h=1 t=x [1,1]", "h=1 t=y [1,1]", "h=2 t=x [1,1]", "h=2 t=y [1,1]"]),
        ("t := upper-case(i/t)", ["t=- [1,1]", "t=X [1,1]"]),
        ("n := string-length(i/n)", ["n=1 [1,1]", "n=4 [1,1]"]),
        ("i := i", ["i=xy1.50 [1,1]", "i=z [1,1]"]),
        ("c := 'q', m := 5", ["c=q m=5 [1,1]", "c=q m=5 [1,1]"]),
    ],
)
def test_attributes(attributes: str, found: list[str]):
    assert of("S//item->i", attributes, f"d@1 {ITEM}") == found


def test_events_are_told_apart_by_the_nodes_that_their_attributes_use():
    block = "S//item->i[./k->k]"
    assert of(block, "t := i/t", f"d@1-3 {ITEM}") == ["t=x [1,3]"]
    assert of(block, "t := i/t, h := k/@h", f"d@1-3 {ITEM}") == ["h=1 t=x [1,3]", "h=2 t=x [1,3]"]
    assert of("S//item[./k->k]", "h := k/@h", f"d@1 {ITEM} | T:e@1 {ITEM}") == ["h=1 [1,1]", "h=2 [1,1]"]
    assert of("S//item/k->k", "c := 'x'", f"d@1 {ITEM}") == ["c=x [1,1]", "c=x [1,1]"]


def late(streams: str, settle: dict[str, int], *batches: str) -> str:
    waits = {stream: seconds * SECOND for stream, seconds in settle.items()}
    return " ".join(
        document.id for document in in_time([stored(batch) for batch in batches], streams.split(), waits)[1]
    )


def test_what_is_late_depends_on_the_batches_before():
    wait = {"S": 2, "T": 0}
    assert late("S", wait, "a@10 <a/> | b@1 <a/>") == ""
    assert late("S", wait, "a@10 <a/>", "b@1 <a/> | c@8 <a/>") == "b"
    assert late("S", wait, "a@10 <a/>", "b@9 <a/>", "c@7.9 <a/> | d@8 <a/>") == "c"


def test_the_slowest_stream_sets_the_horizon():
    wait = {"S": 0, "T": 1}
    assert late("S T", wait, "a@10 <a/>", "b@1 <a/>") == ""
    assert late("S T", wait, "a@10 <a/> | T:t@5 <a/>", "b@4 <a/> | c@3 <a/>", "T:u@3.5 <a/>") == "c u"
