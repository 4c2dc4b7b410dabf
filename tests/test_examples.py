"""The examples in docstrings give what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.test_project import PACKAGES, modules


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


WITH_EXAMPLES = [path for package in PACKAGES for path in modules(package) if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("name", list(map(module_name, WITH_EXAMPLES)))
def test_examples_give_what_they_say(name: str):
    failed, attempted = doctest.testmod(import_module(name))
    assert attempted and not failed
