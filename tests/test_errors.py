"""The family of errors: one root, two branches, each also a builtin; docs/python.md names the exported ones."""

import builtins
import pickle
import re
from pathlib import Path

import pytest

import mmqjp
from common.errors import InputError, MmqjpError, OperationalError
from feeds.documents import SourceError
from feeds.fetch.http import FetchError, Gone
from feeds.fetch.state import FetchIsRunning
from feeds.files import TooLargeError
from join_stage.plans import UnknownPlan
from join_stage.store.protocol import OtherEngine
from mmqjp.queries.changes import UnknownQuery
from tests.support.places import ROOT
from tests.test_house import product_modules
from xscl.check import TooManyDisjuncts
from xscl.parser import parse_script
from xscl.text import XsclErrors

BRANCHES = (MmqjpError, InputError, OperationalError)

INTERNAL = {
    "feeds.fetch.http.FetchedAlready", "feeds.fetch.http.HostPaused", "mmqjp.answers.operators.QuotaExceeded",
    "mmqjp.answers.quota.OutOfSteps", "mmqjp.commands.command_line.Failure",
    "mmqjp.commands.command_line.Interrupted", "mmqjp.commands.command_line.ScriptFailure",
    "mmqjp.explain.terms.Exhausted", "mmqjp.explain.terms.TooLong", "mmqjp.service.streaming.Stopped",
    "pattern_stage.in_sql.AsConstant", "pattern_stage.in_sql.NotSql", "pattern_stage.operators.Crowded",
    "xscl.lalr.Unparsable", "xscl.text.Problem",
}  # fmt: skip
"""Errors that no caller meets: they say within a room how the work goes on, or end a command."""

PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")


def all_errors() -> dict[str, type[Exception]]:
    """The public exception classes of the product, by their full names."""
    found = {}
    for module in product_modules():
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.__name__:
                found[f"{module.__name__}.{value.__name__}"] = value
    return {name: error for name, error in found.items() if not error.__name__.startswith("_")}


ERRORS = all_errors()
FAMILY = {name: error for name, error in ERRORS.items() if name not in INTERNAL}
EXPORTED = {name for name in mmqjp.__all__ if getattr(mmqjp, name) in FAMILY.values()}


def builtins_of(error: type[Exception]) -> list[type]:
    general = (Exception, BaseException, object)
    return [base for base in error.__mro__ if base.__module__ == builtins.__name__ and base not in general]


def test_an_error_is_internal_or_of_one_branch_and_a_builtin():
    assert not any(issubclass(ERRORS[name], MmqjpError) for name in INTERNAL)
    for name, error in FAMILY.items():
        assert issubclass(error, MmqjpError), name
        if error not in BRANCHES:
            assert issubclass(error, InputError) != issubclass(error, OperationalError), name
            assert builtins_of(error), name


def test_an_error_says_when_it_is_raised():
    assert [name for name, error in ERRORS.items() if not error.__doc__] == []


MADE = {
    SourceError: SourceError("a.opml", "no such file", "check the path"),
    FetchError: FetchError("the server answered 503", 503, 7),
    Gone: Gone("it is gone", 410),
    OtherEngine: OtherEngine(Path("state"), "spark"),
    TooLargeError: TooLargeError(b"<a>"),
    TooManyDisjuncts: TooManyDisjuncts(64),
    UnknownPlan: UnknownPlan("quick"),
    FetchIsRunning: FetchIsRunning("feeds.db", "another fetch is using this state", "wait for it, or end it"),
    UnknownQuery: UnknownQuery("news"),
}
"""An error of each class that takes other arguments than a message."""


def made(error: type[Exception]) -> Exception:
    """An error of a class, as it would be raised."""
    if error.__module__ == "xscl.text":
        with pytest.raises(XsclErrors) as caught:
            parse_script("FROM S//a[1];\nFROM S//b[last()]")
        return caught.value if error is XsclErrors else caught.value.errors[0]
    return MADE.get(error) or error("the message")


def test_an_error_pickles():
    for before in map(made, FAMILY.values()):
        after = pickle.loads(pickle.dumps(before))
        assert (type(after), str(after)) == (type(before), str(before))
        if not isinstance(before, XsclErrors):  # it holds others, which are not compared by what they say
            kept = ({key: str(value) for key, value in vars(error).items()} for error in (before, after))
            assert next(kept) == next(kept), type(before)


def test_page_says_of_each_exported_error_which_builtin_it_is():
    section = PAGE.partition("\n## Errors\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? ?\|", section, re.MULTILINE)
    said = {name: {getattr(builtins, builtin)} if builtin else set() for name, builtin in rows}
    assert said.keys() == EXPORTED
    for name, builtin in said.items():
        assert builtin == set(builtins_of(getattr(mmqjp, name))[:1])
