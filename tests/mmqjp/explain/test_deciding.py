"""When absences are decided, in words."""

import pytest

from mmqjp.explain.plan import absences_in, answers_after, decided_when
from mmqjp.queries.compile import Compiler


def absences(text: str) -> list[str]:
    return [answers_after(absence) for absence in absences_in(Compiler().compile_text(text).normal)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("S/a->x JOIN {x = y, 1 h} S/b->y", []),
        (
            "S/a->x NOT FOLLOWED BY {x = y, 1 h} T/b->y",
            ["NOT FOLLOWED BY is decided 1 h and the lateness of T after a document; T is kept for 1 h"],
        ),
        (
            "S/a->x NOT JOIN {x = y OR x = z, 1 h} T/b->y[./c->z]",
            ["NOT JOIN is decided 1 h and the lateness of T after a document; T is kept for 2 h"],
        ),
        (
            "S/a->x NOT PRECEDED BY {x = y, INF} T/b->y JOIN {x = z, 1 h} S/c->z",
            ["NOT PRECEDED BY is decided the lateness of T after a document; T is kept for good"],
        ),
        (
            "S/a->x NOT PRECEDED BY {x = y, 3 s} (SELECT y FROM T/b->y NOT JOIN {y = z, 2 s} U/c->z)",
            [
                "NOT JOIN is decided 2 s and the lateness of U after a document; U is kept for 4 s",
                "NOT PRECEDED BY is decided the lateness of its right input after a document; "
                "its right input is kept for 3 s",
            ],
        ),
    ],
)
def test_what_an_absence_needs(text: str, told: list[str]):
    assert absences(text) == told


def test_the_watermark_that_decides():
    (absence,) = absences_in(Compiler().compile_text("S/a->x NOT FOLLOWED BY {x = y, 90 s} T/b->y").normal)
    assert decided_when(absence) == (
        "decided when the watermark of T is more than 90 s past the beginning of a left document"
    )
