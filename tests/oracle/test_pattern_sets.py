"""The oracle's sets (docs/semantics.md, section 24): the examples of match windows, and hand-checked cases."""

from __future__ import annotations

from dataclasses import replace

from tests.oracle.event_syntax import Cmp, Of, Str, Window
from tests.oracle.pattern_cases import both, text, told
from tests.oracle.pattern_syntax import Absent, AnyOrder, Many, One, Pattern

# ---------------------------------------------------------------- a chemotherapy; a day is a second

KINDS = (text("c", "l", "C"), Cmp("=", Of("p", "l", "[]"), Str("P")), text("b", "l", "B"))
RISES = Cmp("<", Of("p", "v", "i-1"), Of("p", "v", "i"))
ONE_PATIENT = (Cmp("=", Of("c", "pid"), Of("p", "pid", "[]")), Cmp("=", Of("p", "pid", "[]"), Of("b", "pid")))
Q1 = Pattern(
    (AnyOrder((One("Chemo", "c"), Many("Chemo", "p"))), One("Chemo", "b")),
    Window("15"),
    cond=both(*KINDS, *ONE_PATIENT, RISES),
)
CHEMO = (
    "Chemo",
    "pid l v:number",
    "1 C 1672.5 @3 | 1 B 7100 @4 | 1 P 111.5 @5 | 2 B 10100 @6 | 2 P 88 @8 | 2 D 84 @9 | 2 C 1320 @10 | 2 P 98 @11"
    " | 1 P 116.5 @12 | 2 P 88 @15 | 1 B 3400 @17 | 2 B 4000 @18 | 2 B 4900 @19 | 1 B 3000 @22",
)


def test_m1_all_matches():
    assert told(Q1, CHEMO) == [
        "1 | 3 | 11 @17",
        "1 | 3 9 | 11 @17",
        "1 | 9 | 11 @17",
        "7 | 5 | 12 @18",
        "7 | 5 | 13 @19",
        "7 | 5 8 | 12 @18",
        "7 | 5 8 | 13 @19",
        "7 | 8 | 12 @18",
        "7 | 8 | 13 @19",
        "7 | 10 | 12 @18",
        "7 | 10 | 13 @19",
    ]


def test_m2_earliest_and_maximal():
    assert told(replace(Q1, maximal=True), CHEMO) == ["1 | 3 9 | 11 @17", "7 | 5 8 | 12 @18", "7 | 8 | 12 @18"]
    by_key = replace(Q1, maximal=True, keys=("pid",), cond=both(*KINDS, RISES))
    assert told(by_key, CHEMO) == told(replace(Q1, maximal=True), CHEMO)
    assert told(replace(by_key, apart=True), CHEMO) == ["1 | 3 9 | 11 @17", "7 | 5 8 | 12 @18"]


def test_m7_what_a_counter_would_miss():
    assert told(Q1, ("Chemo", CHEMO[1], "1 B 1 @1 | 1 C 1 @2 | 1 P 1 @3 | 1 B 1 @4")) == ["2 | 3 | 4 @4"]


def test_m8_a_kleene_variable_in_the_last_set_is_known_at_the_end_of_the_window():
    both_sets = Pattern((One("A", "a"), AnyOrder((Many("B", "b"),))), Window("3"), maximal=True)
    given = ("A", "x", "- @1"), ("B", "x", "- @2 | - @3 | - @4 | - @5")
    assert told(both_sets, *given) == ["1 | 2 3 4 @4"]
    assert told(replace(both_sets, components=(One("A", "a"), Many("B", "b"))), *given) == ["1 | 2 3 4 @4"]


# ---------------------------------------------------------------- sets by hand


def test_any_order_within_a_set_and_before_the_next():
    pattern = Pattern((AnyOrder((One("A", "a"), One("B", "b"))), One("A", "c")), Window("10"))
    assert told(pattern, ("A", "x", "- @2 | - @4"), ("B", "x", "- @1 | - @3 | - @5")) == [
        "1 | 3 | 2 @4",
        "1 | 4 | 2 @4",
    ]


def test_an_event_is_used_once_and_events_of_a_set_may_overlap():
    two = Pattern((AnyOrder((One("A", "a"), One("A", "b"))),), Window("5"))
    assert told(two, ("A", "x", "- @1-3 | - @2-4")) == ["1 | 2 @4", "2 | 1 @4"]
    assert told(replace(two, within=Window("2")), ("A", "x", "- @1-3 | - @2-4")) == []


def test_negation_beside_sets():
    given = ("A", "x", "- @1"), ("B", "x", "- @3"), ("C", "x", "- @6"), ("N", "x", "- @2")
    sets = AnyOrder((One("A", "a"), One("B", "b")))
    between = Pattern((sets, Absent("N", "n"), One("C", "c")), Window("10"))
    assert told(between, *given) == ["1 | 2 | 3 @6"]  # 2 is not behind all of the set
    later = (*given[:3], ("N", "x", "- @4"))
    assert told(between, *later) == []
    silent = Pattern((sets, Absent("N", "n")), Window("3"))
    assert told(silent, *given) == ["1 | 2 @4"]
    assert told(silent, *later) == []


def test_earliest_prefers_the_first_of_several_and_keeps_one_for_each_first_event():
    three = Pattern((AnyOrder((One("A", "a"), One("B", "b"), One("C", "c"))),), Window("10"), maximal=True)
    given = ("A", "x", "- @3"), ("B", "x", "- @1 | - @2"), ("C", "x", "- @5 | - @6")
    assert told(three, *given) == ["1 | 2 | 4 @5", "1 | 3 | 4 @5"]
    assert told(replace(three, apart=True), *given) == ["1 | 2 | 4 @5"]
