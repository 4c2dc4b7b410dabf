"""`mmqjp check` on scripts with event statements: what it prints of good ones, and what it warns of."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

from tests.support.cli import mmqjp as call
from tests.xscl.test_event_statements import EVENTS, FEED_EXAMPLES

DEFINED = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM T//b->r (l := r/@l, y := number(r/y), z := r/z);
FROM A NEXT B WITHIN 1 d
"""

ENDLESS = "what waits here is kept for ever: nothing says how long a result may take"
TEXT = "a text is compared with a number: this never holds for a text that is none"


def check(tmp_path: Path, text: str, *more: str):
    path = tmp_path / "events.xscl"
    path.write_text(text)
    result = call("check", path, *more)
    return result, str(path)


def warnings(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if "warning" in line]


def cells(text: str) -> list[list[str]]:
    lines = [line.strip() for line in text.splitlines() if line.startswith(" ") and line.strip() and "─" not in line]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_what_is_defined_and_what_queries_keep_and_share(tmp_path):
    text = f"""{DEFINED}PUBLISH first;
FROM FILTER{{y > 3}}(A NEXT B WITHIN 1 d) PUBLISH high;
AGGREGATE{{max(y) AS top BY l OVER 2 h}} B;
FROM S//c[./d->e] PUBLISH plain;
FROM FILTER{{y > 4}} high"""
    result, path = check(tmp_path, text)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == f"{path}: 5 queries, 2 events defined, no mistakes"
    assert cells(result.stdout) == [
        ["query", "kind", "reads", "disjuncts", "value joins", "templates", "shares a row with"],
        ["plain", "filter", "S", "1", "0", "0", "-"],
        ["event", "from", "attributes", "read by"],
        ["A", "S", "k, x (number)", "first, high"],
        ["B", "T", "l, y (number), z", "first, high, q3"],
        ["event query", "reads", "operators", "keeps for", "shares operators with"],
        ["first", "A, B", "NEXT", "1 d", "high"],
        ["high", "A, B", "NEXT, FILTER", "1 d", "first"],
        ["q3", "B", "AGGREGATE", "2 h", "-"],
        ["q5", "high", "FILTER", "-", "-"],
    ]


def test_queries_of_both_kinds_are_numbered_together_and_definitions_alone_are_a_script(tmp_path):
    rows = cells(check(tmp_path, f"{DEFINED};\nFROM S//c->d;\nFROM S//c->e")[0].stdout)
    assert [(row[0], row[-1]) for row in rows[1:3]] == [("q2", "q3"), ("q3", "q2")]
    result, path = check(tmp_path, "DEFINE EVENT A FROM S//a->r (k := r/@k)")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{path}: 0 queries, 1 event defined, no mistakes\n")


def test_the_examples_of_feeds_have_no_warnings_but_for_events_that_nothing_reads(tmp_path):
    result, _ = check(tmp_path, EVENTS + "".join(FEED_EXAMPLES.values()))
    assert result.exit_code == 0
    assert [line for line in warnings(result) if "nothing reads" not in line] == []


@pytest.mark.parametrize(
    ("query", "place", "warning"),
    [
        ("FROM A NEXT B", "A ^NEXT B", ENDLESS),
        ("FROM (A NEXT B WITHIN 3 d) UNION (A NEXT{DUR >= 3 d} B)", "(A ^NEXT{DUR",
         ENDLESS),
        ("FROM FILTER{z > 3} B", "^z > 3", TEXT),
        ("FROM FILTER{NOT (3 < z)} B", "^z)", TEXT),
        ("FROM FILTER{z = 3} B", "^z = 3", TEXT),
        ("FROM A NEXT{$1.k = $2.y} B WITHIN 1 d", "^$1.k",
         TEXT),
        ("FROM A NEXT{k < z} B WITHIN 1 d", "^k < z",
         "< compares numbers, and both of these are texts: it holds for texts that are numbers"),
        ("FROM FILTER{k = l AND y > 3}(A NEXT B) WITHIN 1 d", "^k = l",
         "NEXT has taken the first event of all before this is tested"),
        ("FROM FILTER{l_1 = l}(B NEXT B) WITHIN 1 d", "^l_1 = l",
         "NEXT has taken the first event of all before this is tested"),
        ("FROM FILTER{y > 3} B WITHIN 5 d", "^5 d", "WITHIN changes nothing without NEXT or FOLD"),
    ],
)  # fmt: skip
def test_warnings(tmp_path, query, place, warning):
    text = DEFINED + ";\n" + query
    result, path = check(tmp_path, text)
    column = query.index(place.replace("^", "")) + place.index("^") + 1
    assert result.exit_code == 0
    assert warnings(result) == [f"{path}:5:{column}: warning: {warning}"]


def test_what_is_well_is_not_warned_of(tmp_path):
    well = [
        "FROM A NEXT{DUR < 3 d} B",
        "FROM FILTER{DUR < 3 d}(A NEXT B)",
        "FROM FILTER{number(z) > 3} B",
        'FROM FILTER{z = "3"} B',
        "FROM FILTER{k = l}(A NEXT{y > 3} B) WITHIN 1 d",
        "FROM FILTER{x = y}(SELECT x, y FROM A NEXT{k = l} B) WITHIN 1 d",
        "FROM A NEXT{k = l} B WITHIN 1 d PUBLISH nobody_reads_it",
    ]
    assert check(tmp_path, ";\n".join([DEFINED, *well]))[0].stderr == ""


def test_an_event_that_nothing_reads_and_names_that_items_do_not_have(tmp_path):
    definitions = "DEFINE EVENT A FROM S//item->i (t := i/titel);\nDEFINE EVENT B FROM S//item->i (t := i/title)"
    text = f'{definitions};\nFILTER{{t != ""}} B'
    result, path = check(tmp_path, text, "--feeds", "--strict")
    assert result.exit_code == 1
    assert warnings(result) == [
        f"{path}:1:14: warning: nothing reads the event A",
        f"{path}:1:40: warning: items have no titel",
    ]


def test_mistakes_are_told_with_their_places(tmp_path):
    result, path = check(tmp_path, DEFINED + ";\nFROM A NEXT C")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{path}:5:13: error: there are no events C\n")
