"""Statements parsed by the tree of one that differs in its constants only say what they say parsed by themselves."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from xscl import parser
from xscl.parser import KnownSkeletons, _Parser, parse_script
from xscl.printer import to_xscl
from xscl.problems import XsclErrors
from xscl.syntax import Script


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_known", {})
    monkeypatch.setattr(parser, "_skeletons", KnownSkeletons(parser._in_own_place))


def outcome(text: str, *, reuse: bool) -> Script | list[str]:
    try:
        return parse_script(text) if reuse else _Parser(text).script(reuse=False)
    except XsclErrors as errors:
        return list(map(str, errors.errors))


def respelled(rng: Random, text: str) -> str:
    """The text with other constants, some of them with quotes, semicolons and numbers in them."""
    words = ["x", 'say ""a""', "it's", ";", "1", "(:", "--", "<a>", "", "a'b"]
    text = re.sub(r'"(?:[^"\n]|"")*"', lambda _: f'"{rng.choice(words)}"', text)
    return re.sub(r"(?<![\w.\-'\"])[0-9]+(?![\w\"])", lambda _: rng.choice(["0", "7", "12.5", "-3", "9" * 25]), text)


@pytest.mark.parametrize("seed", seeds(5, 60))
def test_other_constants_say_what_they_say(seed: int):
    rng = Random(seed)
    text = to_xscl(random_case(seed, 3, 1)[0])
    for variant in [text, *(respelled(rng, text) for _ in range(8))]:
        assert outcome(variant, reuse=True) == outcome(variant, reuse=False), variant


@pytest.mark.parametrize("seed", seeds(3, 30))
def test_other_names_are_published(seed: int):
    rng = Random(seed)
    queries = [re.sub(r" PUBLISH \w+$", "", query) for query in to_xscl(random_case(seed, 4, 1)[0]).split("; ")]
    spaces = [" ", "\n", "  \t", "\u00a0", ""]
    names = ["n1", "N1", "_x", "from", "PUBLISH", "a-b", "é", "1x", "a b", ""]
    for _ in range(12):
        ends = (f"{rng.choice(spaces)}{rng.choice(['PUBLISH', 'publish'])} {rng.choice(names)}" for _ in queries)
        kept = (rng.choice([end, ""]) for end in ends)
        text = ";\n".join(query + end for query, end in zip(queries, kept, strict=True))
        assert outcome(text, reuse=True) == outcome(text, reuse=False), text


@pytest.mark.parametrize("query", ["//a PUBLISH {}", "//a->x JOIN {{x = y, INF}} //b->y PUBLISH {}", "FROM {}"])
def test_a_known_query_under_another_name_shares_its_tree(query: str):
    texts = [query.format(name) for name in ("first", "second", "third")]
    scripts = [parse_script(text) for text in texts]
    assert [to_xscl(script) for script in scripts] == [to_xscl(_Parser(text).script(reuse=False)) for text in texts]
    if "PUBLISH" in query:
        assert scripts[1].queries[0].source is scripts[2].queries[0].source
    first, second = (parse_script(texts[0]).queries[0] for _ in range(2))
    assert first.source is second.source


TOKENS = ['"a"', "'b'", "''", '"c""d"', "t'", "7", "-1.5", ".5", "x1", "and'e'", ";", "\n", " "]


@given(st.lists(st.sampled_from(TOKENS)))
def test_any_tokens(tokens: list[str]):
    text = f'//a[b = "x"]; //a[. = {" ".join(tokens)}]'
    for variant in (text, text.replace('"a"', '"z"')):
        assert outcome(variant, reuse=True) == outcome(variant, reuse=False)


JOIN = "//a->c[b = {}] FOLLOWED BY {{c = d, {} d}} //e->d[c > {}]"


def test_a_known_skeleton_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch):
    parse_script(JOIN.format("'x'", 7, 5))
    monkeypatch.setattr(parser, "_parse_statement", None)
    other = parse_script(JOIN.format('"it\'s"', 90, -1))
    assert to_xscl(other) == "FROM S" + JOIN.format('"it\'s"', 90, -1).replace("[", "[./").replace("//e", "S//e")


@pytest.mark.parametrize("end", ["", ";", ";\n", " ;\n\n"])
def test_a_known_query_knows_its_place(end: str):
    statements = ["//a[b = 'x']", "//c[d = 5] PUBLISH e", "//a[b = 'y']"]
    parse_script(";\n".join(statements))
    for separator in (";\n", ";\n  ", " ; "):
        text = separator.join(["", *reversed(statements)]).removeprefix(separator) + end
        assert [text[q.span.start : q.span.end] for q in parse_script(text).queries] == statements[::-1]


def test_a_mistake_in_the_constants_is_told_with_its_place():
    parse_script(JOIN.format("'x'", 7, 5))
    with pytest.raises(XsclErrors, match="a window cannot be negative") as found:
        parse_script("//b;\n" + JOIN.format("'y'", -7, 5))
    assert (found.value.errors[0].line, found.value.errors[0].column) == (2, 37)


@pytest.mark.parametrize("illegal", ["\x0b", "\x0c", "\x1c", "\x1f"])
def test_a_character_that_is_not_allowed_is_told_of_among_known_statements_too(illegal: str):
    parse_script("//a;\n//b")
    for text in (f"{illegal}//a;\n//b", f"//a;\n{illegal}//b", f"//a;\n//b;{illegal}"):
        assert outcome(text, reuse=True) == outcome(text, reuse=False) != parse_script("//a;\n//b")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parser, "MAX_STATEMENTS", 3)
    monkeypatch.setattr(parser, "MAX_SKELETONS", 2)
    monkeypatch.setattr(parser, "MAX_TREES", 3)
    for n in range(10):
        parse_script(f"//a{n}[b = 'x'];\n//b{n}")
        assert len(parser._known) <= 3
        parse_script(f"//b{n} PUBLISH other")
        assert len(parser._skeletons._fills) <= 2 and len(parser._skeletons._trees) <= 3
