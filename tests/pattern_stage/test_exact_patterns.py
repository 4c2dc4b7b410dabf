"""The cases by hand that the oracle of PATTERN is judged by hold for the kernel, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import pytest

from pattern_stage.kernel import Kernel
from tests.generate.documents import SECOND
from tests.oracle import pattern_cases, test_near, test_pattern_sets, test_patterns
from tests.oracle.event_syntax import Cmp, Fn, Of, Window
from tests.oracle.pattern_cases import Given, both, brief
from tests.oracle.pattern_matches import Match
from tests.oracle.pattern_syntax import Near, Pattern
from tests.support.event_agreement import Run, Runner

LATE = 10_000_000 * SECOND
"""All windows are over then."""


def told_by_kernel(statement: Pattern | Near, *given: Given) -> list[str]:
    """What the kernel tells, as `told` has it."""
    runner = Runner(pattern_cases._world(statement, given), Run((LATE,)))
    runner.results()
    matches = [Match(bound, known, errors) for bound, known, errors, _ in runner.told[0]]
    return sorted(map(brief, matches), key=pattern_cases._numbers)


def cases() -> Iterator[Any]:
    """The tests of the oracle that say what is told, each with its parameters."""
    for module in (test_patterns, test_pattern_sets, test_near):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and "told" in test.__code__.co_names:
                for number, parameters in enumerate(parameters_of(test)):
                    title = f"{module.__name__.split('.')[-1]}-{name}-{number}"
                    yield pytest.param(module, partial(test, **parameters), id=title)


def parameters_of(test: Any) -> Iterator[dict[str, Any]]:
    """The parameters that a test is run with."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for chosen in product(*(mark.args[1] for mark in marks)):
        found: dict[str, Any] = {}
        for mark, values in zip(marks, chosen, strict=True):
            names = mark.args[0]
            found |= {names: values} if isinstance(names, str) else dict(zip(names, values, strict=True))
        yield found


@pytest.mark.parametrize(("module", "test"), list(cases()))
def test_the_kernel_tells_what_the_case_says(module: ModuleType, test: Callable[[], None], monkeypatch):
    monkeypatch.setattr(module, "told", told_by_kernel)
    test()


@pytest.mark.parametrize(
    ("function", "is_merged", "waiting"), [("avg", True, 2), ("avg", False, 2), ("max", True, 1), ("max", False, 2)]
)
def test_s2_runs_that_remember_the_same_are_one(function: str, is_merged: bool, waiting: int):
    """After the fourth quote there are the runs of the first and of the third one. With max instead of avg they
    remember the same. Then both go on, but those alone are told that began within the window."""
    above = Cmp(">", Of("a", "price", "i"), Fn(function, (Of("a", "price", "..i-1"),)))
    rises = replace(test_patterns.Q3, cond=both(test_patterns.MANY, above, test_patterns.LOW))
    world = pattern_cases._world(rises, [test_patterns.QUOTES])
    kernels: list[Kernel] = []

    def make(texts: Any, lineage: Any, run: Run) -> Kernel:
        kernels.append(Kernel(texts, lineage, merged=is_merged))
        return kernels[-1]

    Runner(world, Run((5 * SECOND,)), make).results()
    assert kernels[0].instances()[1].tolist() == [waiting]
    if function == "max":
        assert told_by_kernel(rises, test_patterns.QUOTES) == ["1 2 4 | 6 @6", "3 4 | 6 @6"]
        assert told_by_kernel(replace(rises, within=Window("4")), test_patterns.QUOTES) == ["3 4 | 6 @6"]
