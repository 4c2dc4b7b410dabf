"""README.md and the pages of docs/: each block runs, and prints what is shown."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.support import tables_page
from tests.support.docs import DOCS, GENERATED, PAGES, differences
from tests.support.places import ROOT


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_print_what_the_page_shows(page: Path):
    found = "\n\n".join(f"{d.place} shows:\n{d.shown}\nand it prints:\n{d.printed}" for d in differences(page))
    assert not found, f"{found}\n\npython -m tests.support.docs --write {page} writes what is printed"


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.stem)
def test_pages_that_are_made_are_current(page: Path):
    assert page.read_text("utf-8") == GENERATED[page](), "python -m tests.support.docs --write makes it anew"


def test_every_table_of_a_store_is_described():
    assert tables_page.undescribed() == set(), "describe these in tests/support/table_meanings.py"


def test_the_site_has_every_page():
    settings = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))
    listed = set(re.findall(r"'([\w-]+\.md)'", str(settings["project"]["nav"])))
    assert listed == {path.name for path in DOCS.glob("*.md")}
