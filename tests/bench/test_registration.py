import pytest

from bench import registration
from xscl.parser import parse_script
from xscl.problems import XsclErrors


@pytest.mark.parametrize("kind", registration.RATES)
def test_a_script_gives_what_its_queries_give_one_by_one(kind):
    line = registration.measure_rate((kind, 50))
    assert line.rows == 50
    # The documents have nothing that the queries of the expert ask for.
    assert bool(line.details["compared_outputs"]) == (kind != "expert")


def test_a_difference_is_an_error(monkeypatch):
    named = registration.named_queries
    monkeypatch.setattr(registration, "named_queries", lambda kind, number: list(named(kind, number))[1:])
    monkeypatch.setattr(registration, "named_script", lambda *case: "".join(f"{text};\n" for text in named(*case)))
    with pytest.raises(AssertionError, match="something else if they are registered one by one"):
        registration.compare_registrations("names")


@pytest.mark.parametrize("kind", registration.INVALID)
def test_the_mistakes_are_mistakes(kind):
    with pytest.raises(XsclErrors) as caught:
        parse_script(registration.named_script(kind, 300))
    assert len(caught.value.errors) == (300 if kind == "all-wrong" else 3)


@pytest.mark.parametrize("kind", registration.SCRIPT_KINDS)
def test_no_two_queries_are_equal(kind):
    assert len(set(registration.named_queries(kind, 300))) == 300


@pytest.mark.soak
def test_the_commands_do_what_is_measured():
    whats = [line.case["what"] for line in registration.measure_commands("windows", 20)]
    assert whats == ["check", "run", "run, new state", "run, that state"]
    assert [line.rows for line in registration.measure_commands("all-wrong", 5)] == [5]


@pytest.mark.soak
def test_patterns_texts_and_stores(capsys):
    registration.report_registration(20, 60)
    printed = capsys.readouterr().out
    assert "60 subscriptions to 20 distinct patterns" in printed
    assert "the document after it, through the engine" in printed and "texts that differ in tags, opened" in printed
