import pytest

from bench import absence
from bench.absence import OPERATORS, AbsenceCase, beside_own_channels, draw_absence, expected_absences, measure_absence


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(absence, "WINDOW", 20)


@pytest.mark.parametrize("kind", OPERATORS)
def test_each_kind_is_measured_beside_own_channels(kind, tmp_path):
    lines = beside_own_channels([measure_absence(AbsenceCase(kind, number, 2, 200)) for number in (1, 10, 200)])
    assert lines[0].details["over_own_channels"] == lines[0].seconds / lines[2].seconds
    assert lines[2].baseline is None and lines[1].baseline == "own channels"
    assert lines[0].details["absences"] == (kind == "first")
    assert lines[2].details["absences"] == (200 if kind == "first" else 179)
    if kind == "first":
        draw_absence(lines, tmp_path / "it")
        assert "documents a second of CPU" in (tmp_path / "it.svg").read_text()


@pytest.mark.parametrize("kind", OPERATORS)
def test_what_is_expected_is_the_definition(kind):
    case = AbsenceCase(kind, 8, 1, 120)
    of, found = case.channel_of(), []
    for number in range(120):
        others = [other for other in range(120) if of[other] == of[number] and 0 < abs(other - number) <= 20]
        partners = {"silent": any(other > number for other in others), "first": any(o < number for o in others)}
        if not partners.get(kind, bool(others)) and (kind == "first" or number + 20 < 119):
            found.append(number)
    assert found and expected_absences(case) == found
