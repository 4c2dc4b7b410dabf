"""Compiled queries are what their texts say, whatever other queries they share parts with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmqjp.queries.compile import Compiler
from mmqjp.queries.model import ByKey, CompactSet, Identity, Subscription, text_digest
from tests.generate.strategies import random_case
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script

TEXTS = [
    "//a->x JOIN {x = y, 3 h} //b->y PUBLISH n",
    "//a->x JOIN {x = y, 4 h} //b->y",
    "//a->x JOIN {x = y, INF} (//b->y FOLLOWED BY {y = z, 5 min} //c->z)",
    "SELECT y FROM (SELECT x AS y FROM //a->x JOIN {x = z, 7 s} //b->z) PUBLISH m",
    'DECLARE NAMESPACE p = "urn:x"; SELECT <p:a>{x}</p:a> FROM //p:a->x FOLLOWED BY {x = y, 9 d} //b->y',
]


@pytest.mark.parametrize("text", [*TEXTS, *(to_xscl(random_case(seed, 3, 1)[0]) for seed in range(30))])
def test_it_is_what_the_query_says_by_itself(text: str):
    compiler = Compiler()
    for _ in range(2):  # the second time, from what is known
        script = parse_script(text)
        for query in script.queries:
            compiled = compiler.compile(query, script.namespaces)
            assert compiled.text == to_xscl(Script((query,), script.namespaces))
            normal = normalize(query, dict(script.namespaces))
            assert repr(compiled.normal) == repr(normal)
            shared = repr(normal).replace(f"window={normal.window},", "window=None,", 1)
            assert compiled.form_id == text_digest(shared)


@pytest.mark.parametrize("name", ["n", "é", 'a"b\\', "\x7f\x01\n\u2028"])
def test_an_identity_begins_a_json_list(name: str):
    assert Identity.of(name, "//a", 2).text == json.dumps([name, "//a", 2], ensure_ascii=False).removesuffix("]")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"))))
def test_few_items_are_an_ordered_set(changes: list[tuple[bool, str]]):
    few: CompactSet[str] = CompactSet()
    expected: dict[str, None] = {}
    for is_added, item in changes:
        if is_added:
            few.add(item)
            expected[item] = None
        else:
            few.discard(item)
            expected.pop(item, None)
        assert list(few) == list(expected) and len(few) == len(expected)
        assert [item in few for item in "abc"] == [item in expected for item in "abc"]


def test_queries_by_key_are_in_order():
    compiled = Compiler().compile_text("//a")
    one, two, three = (Subscription(qid, "n", "//a", 0, -1, None, "f", 0, compiled) for qid in range(3))
    index = ByKey()
    for query in (one, two, three):
        index.add("n", query)
    assert list(index.get("n")) == [one, two, three] and list(index.get("m")) == []
    index.remove("n", one)
    index.remove("n", three)
    assert list(index.get("n")) == [two]
    index.remove("n", two)
    index.add("n", one)
    assert list(index.get("n")) == [one]
    index.remove("n", one)
    assert not index.get("n")
    with pytest.raises(KeyError):
        index.remove("n", one)
