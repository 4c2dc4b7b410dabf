"""`mmqjp explain` on scripts with event statements: automata, what they share, and the plan of all."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from lxml import etree

from tests.support.cli import mmqjp as call

SCRIPT = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (l := r/@l, y := number(r/y));
FROM FILTER{x >= 7} A NEXT{k = l AND y = 5} B WITHIN 1 d PUBLISH first;
FROM FILTER{y > 3}(FILTER{x >= 7} A NEXT{k = l AND y = 5} B) WITHIN 1 d PUBLISH high;
FROM FILTER{x >= 8} A NEXT{k = l AND y = 5} B WITHIN 2 d PUBLISH other;
FROM (SELECT l, y FROM B) FOLD{$2.l = $.l, $2.y > $.y,} B WITHIN 3 d PUBLISH run;
FROM AGGREGATE{max(y) AS top BY l OVER 2 h} B PUBLISH top
"""


def explain(tmp_path: Path, *options: str, text: str = SCRIPT):
    path = tmp_path / "events.xscl"
    path.write_text(text)
    return call("explain", path, *options)


def lines(tmp_path: Path, *options: str, text: str = SCRIPT) -> list[str]:
    result = explain(tmp_path, *options, text=text)
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]


NEXT = """\
0  start
start to 1  A: FILTER{x >= 7}
static index: x in order
1  waits for its first partner, kept for 1 d; row 0 of 2 of m-op 3, shared with high
forward to 2  B: NEXT{$1.k = $2.l AND $2.y = 5}
static index: y hashed
hash: $1.k = $2.l
2  final
shares operators with high
"""


def test_automata_of_operators(tmp_path):
    found = lines(tmp_path, "--query", "first")
    assert found[found.index("automaton") + 1 :] == NEXT.splitlines()
    found = lines(tmp_path, "--query", "run")
    assert "1  a run that may go on, kept for 3 d; row 0 of 1 of m-op 5, shared with no other query" in found
    fold = "B: FOLD{$.l = $2.l, $.y < $2.y, }"
    assert [line for line in found if fold in line] == [f"rebind to 1  {fold}", f"forward to 2  {fold}"]
    found = lines(tmp_path, "--query", "top")
    assert "1  groups of events, kept for 2 h; row 0 of 1 of m-op 6, shared with no other query" in found
    assert "forward to 2  AGGREGATE{max(y) AS top BY l}" in found
    text = SCRIPT.replace("FROM AGG", "A NEXT (B NEXT A) PUBLISH deep;\nFROM AGG")
    found = lines(tmp_path, "--query", "deep", text=text)
    edges = [line for line in found if line.startswith(("start", "forward", "feeds"))]
    assert sorted(line.split("  ")[1] for line in edges) == ["A", "A: NEXT", "B", "results of state 1: NEXT"]


PATTERNS = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (k := r/@k, y := number(r/y));
PATTERN SEQ(A+ a[], ~(B c), B b)
WHERE skip_till_next_match {[k] AND a[1].x > 3 AND a[i].x > avg(a[..i-1].x) AND a[a.LEN].x > 9 AND b.y = 5 AND c.y < 2}
WITHIN 1 h HAVING count(a[]) > 2 NON OVERLAPPING PUBLISH runs;
PATTERN SEQ(SET(A a, B+ b[]), A c) WHERE {a.x > 1 AND c.x > a.x} WITHIN 1 h EARLIEST MAXIMAL PUBLISH sets;
PATTERN SEQ(A, (B | A)+, B!) WHERE {[k]} ERRORS <= 1 WITHIN 2 d PUBLISH near
"""

AUTOMATA = {
    "runs": """\
0 start
begin 1 A, a[1].x > 3, static index: x in order
1 a[], one event or more of A, equal in k
take 1 A, a[i].x > avg(a[..i-1].x)
ignore 1 any event that the run cannot go on with
unless 2 B c, c.y < 2, static index: y in order
proceed 2 B, a[a.LEN].x > 9, b.y = 5, static index: y hashed
2 b, an event of B
end 3 , HAVING count(a[]) > 2, NON OVERLAPPING
3 final
""",
    "sets": """\
0 start
begin 1 A a, a.x > 1, static index: x in order
begin 1 B b
1 a, an event of A; b[], one event or more of B, in any order
begin 2 A c
2 c, an event of A
end 3 , c.x > a.x, EARLIEST MAXIMAL
3 final
""",
    "near": """\
0 start
begin 1 A
1 an event of A, which may be left out, equal in k
ignore 1 any event
begin 2 B
begin 3 A
2 an event of B, which may be left out
take 2 B
ignore 2 any event
begin 3 A
begin 4 B
3 an event of A, which may be left out
take 2 B
take 3 A
ignore 3 any event
begin 4 B
4 an event of B, which is needed
ignore 4 any event
end 5 , at most 1 left out on the way
5 final
""",
}


@pytest.mark.parametrize("name", AUTOMATA)
def test_automata_of_patterns(tmp_path, name):
    found = json.loads(explain(tmp_path, "--json", "--query", name, text=PATTERNS).stdout)
    shown = []
    for state in found["automaton"]["states"]:
        shown.append(f"{state['number']} {state['title']}")
        for edge in found["automaton"]["edges"]:
            if edge["source"] == state["number"]:
                does = "".join(f", {one}" for one in (*edge["does"], *edge["found_by"]))
                shown.append(f"{edge['kind']} {edge['target']} {edge['stream']}{does}".strip())
    assert shown == AUTOMATA[name].splitlines()


def test_runs_that_are_found_by_a_hash(tmp_path):
    text = """\
DEFINE EVENT A FROM S//a->r (k := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (l := r/@l, y := number(r/y));
PATTERN SEQ(A a, ~(B n), B+ b[], A c)
WHERE skip_till_next_match {n.l = a.k AND b[1].l = a.k AND b[i].l = b[i-1].l AND b[i].y > 2 AND c.k = b[1].l}
WITHIN 1 h PUBLISH hashed;
PATTERN SEQ(A+ a[], A c) WHERE skip_till_next_match {a[i].k = a[1].k AND c.x > a[1].x} WITHIN 1 h PUBLISH scanned
"""
    found = lines(tmp_path, "--query", "hashed", text=text)
    hashes = {found[at - 1].split("  ")[0]: line for at, line in enumerate(found) if line.startswith("hash: ")}
    assert hashes == {
        "unless to 2": "hash: n.l = a.k",
        "begin to 2": "hash: b[1].l = a.k",
        "static index: y in order": "hash: b[i].l = b[i-1].l",
        "proceed to 3": "hash: c.k = b[1].l",
    }
    # An event of A may be the next one of a[] or the last one, so it is compared with all runs.
    assert not [line for line in lines(tmp_path, "--query", "scanned", text=text) if "hash" in line]


def match_windows(tmp_path: Path, name: str, old: str = "", new: str = "") -> list[str]:
    """What the windows of a pattern leave out."""
    found = lines(tmp_path, "--query", name, text=PATTERNS.replace(old, new))
    return found[found.index("match windows") + 1 : -1] if "match windows" in found else []


def test_the_match_windows_of_patterns(tmp_path):
    assert match_windows(tmp_path, "runs") == [
        "filter  a[1]: x > 3; ~c: y < 2; b: y = 5",
        "partition  equal in k",
        "necessary  2 events; candidates for a[1] and b; a[1] before b",
    ]
    assert match_windows(tmp_path, "sets") == [
        "filter  a: x > 1",
        "necessary  3 events; candidates for a, b[1] and c; a before c; b[1] before c",
    ]
    assert not match_windows(tmp_path, "near")
    assert not match_windows(tmp_path, "runs", "skip_till_next_match", "strict_contiguity")
    equal = match_windows(tmp_path, "sets", "c.x > a.x", "c.k = a.k AND b[].y = c.x AND b[].k = a.k")
    assert "partition  equal in k" in equal
    crossed = match_windows(tmp_path, "sets", "c.x > a.x", "c.x = a.x AND b[].y = c.x")
    assert "partition  equal in a.x = b[1].y = b[i].y = c.x" in crossed


def test_as_json(tmp_path):
    result = explain(tmp_path, "--json")
    found = {one["query"]: one for one in map(json.loads, result.stdout.splitlines())}
    assert list(found) == ["first", "high", "other", "run", "top"]
    assert found["high"]["shares_with"] == ["first"]
    states, edges = found["first"]["automaton"]["states"], found["first"]["automaton"]["edges"]
    assert [state["title"] for state in states] == ["start", "waits for its first partner", "final"]
    shown = [(edge["kind"], edge["source"], edge["target"], edge["stream"]) for edge in edges]
    assert shown == [("start", 0, 1, "A"), ("forward", 1, 2, "B")]
    result = explain(tmp_path, "--json", text="FROM S//a")
    assert result.exit_code == 1 and "has no event query" in result.stderr


def parts(found: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The lines of the plan before the rules, of the rules, and of the plan after them."""
    rules, after = (found.index(title) for title in ("rules", "plan after the rules"))
    return found[found.index("plan before the rules") : rules], found[rules:after], found[after:]


def test_the_plan_before_and_after_each_rule(tmp_path):
    before, rules, after = parts(lines(tmp_path, "--plan"))
    assert any("FILTER of 1: 3 rows" in line for line in before)
    assert any("FILTER of 1: 2 rows" in line for line in after)
    steps = [line.split() for line in rules[2:10]]
    names = ["rule", "none", "cse", "s_sigma", "s_alpha", "s_window", "channels", "c_alpha"]
    assert [step[0] for step in steps] == names
    sizes = [[int(size) for size in step[1:]] for step in steps[1:]]
    assert all(after <= before for one, other in pairwise(sizes) for before, after in zip(one, other, strict=True))
    assert sizes[1][1] < sizes[0][1], "cse makes equal rows one"
    assert sizes[5][2] < sizes[4][2], "rows that differ in their left rows alone share instances"
    _, rules, after = parts(lines(tmp_path, "--plan", "--without", "cse"))
    assert any(line.split() == ["cse", "is", "off"] for line in rules)
    assert any("FILTER of 1: 3 rows" in line for line in after)


def test_partial_aggregates_of_several_queries_are_in_the_plan(tmp_path):
    text = SCRIPT + ";FROM AGGREGATE{avg(y) AS mean, count(l) AS n OVER 1 d} B PUBLISH mean"
    before, rules, after = parts(lines(tmp_path, "--plan", text=text))
    (partial,) = (line for line in after if "PARTIAL AGGREGATES" in line)
    assert partial.endswith(": 1 row for top, mean")
    assert "AGGREGATE{count(), max(y), sum(y), count(y), count(l) BY l}" in after
    assert sum(f"AGGREGATE of {partial.split()[0]}: 1 row" in line for line in after) == 2
    assert not [line for line in before + rules if "PARTIAL" in line]
    off = lines(tmp_path, "--plan", "--without", "s_alpha", text=text)
    assert not [line for line in off if "PARTIAL" in line]
    counted = [step[-1] for step in map(str.split, rules[2:])][:5]
    assert counted == ["aggregations", "2", "2", "2", "1"], "as many as there are AGGREGATEs, one with s_alpha"
    assert next(line.split()[-1] for line in off if line.startswith("channels ")) == "2"


def test_many_statements_stay_a_few_lines(tmp_path):
    text = "DEFINE EVENT A FROM S//a->r (k := r/@k);\n" + ";\n".join(f'FILTER{{k = "{n}"}} A' for n in range(1000))
    assert len(lines(tmp_path, "--plan", text=text)) < 40


MIXED = (
    SCRIPT
    + """;
FROM S//a->x[./k->k] FOLLOWED BY {k = l, 1 h} S//b->y[./l->l] PUBLISH pairs;
FROM S//a->x[./k->k] FOLLOWED BY {k = l, 2 h} S//b->y[./l->l] PUBLISH later;
DEFINE EVENT Pair FROM pairs//match->m (k := m/a/k);
FROM Pair NEXT{k = l} B WITHIN 1 d PUBLISH after
"""
)


def test_a_plan_has_value_joins_and_event_queries(tmp_path):
    before, rules, after = parts(lines(tmp_path, "--plan", text=MIXED))
    assert sum(": 1 row for pairs" in line or ": 1 row for later" in line for line in before) == 2
    assert any(re.search(r"JOIN of template \d+ of \d+: 1 row for pairs, later", line) for line in after)
    steps = [line.split() for line in rules]
    assert ["documents", "2", "2"] in steps and ["t_join", "1", "1"] in steps
    (outputs,) = (line for line in after if line.endswith("outputs pairs") or "outputs pairs from" in line)
    assert any(f"events Pair from {outputs.split()[0]}" in line for line in after)
    off = lines(tmp_path, "--plan", "--without", "t_join", text=MIXED)
    assert any(line.split() == ["t_join", "is", "off"] for line in off)
    found = lines(tmp_path, text=MIXED)
    assert "query first" in found and "query later" in found
    found = lines(tmp_path, "--plan", text="FROM S//a")
    assert "0  documents S" in found and "1  FILTER of 0: 1 row for q1" in found


def test_the_plan_is_drawn(tmp_path):
    picture = tmp_path / "plan.svg"
    result = explain(tmp_path, "--plan", "--svg", str(picture), text=MIXED)
    assert (result.exit_code, result.output) == (0, "")
    drawn = etree.fromstring(picture.read_bytes())
    texts = ["".join(map(str, one.itertext())) for one in drawn.iter("{*}text")]
    assert texts.index("before the rules") < texts.index("after the rules")
    assert {"documents S", "events A", "NEXT", "outputs pairs"} <= set(texts)


def test_an_unknown_name(tmp_path):
    result = explain(tmp_path, "--query", "frist")
    assert result.exit_code == 1 and "no query named frist; did you mean first?" in result.stderr
