"""The house: a public name stands in one module, chains of imports are short, and a class is in one file.

`make house` prints the figures that these limits are about. A limit may only shrink.
"""

import re

import pytest

from tests.support import house
from tests.support.places import ROOT

pytestmark = pytest.mark.xdist_group("house")  # one worker parses the product once

PROTOCOLS = {
    "main": "the entry point of a program",
    "add": "the command of that name, of feeds and of sinks",
    "show": "the command of that name, of documents and of sinks",
}
"""Functions that stand in several modules because a protocol names them."""

BOUND_TO_BACKENDS = {"pattern_stage.partition.kernel:SparkRunner"}
"""Bases of `mmqjp.answers.events_run`, which binds what pattern_stage may not know: the store and its errors."""


def test_a_public_class_or_type_alias_stands_in_one_module():
    assert house.standing_twice(house.classes_and_aliases) == {}


def test_a_public_function_stands_in_one_module():
    assert house.standing_twice(house.functions).keys() == PROTOCOLS.keys()


def test_names_of_modules_seldom_repeat():
    """Many are of the same part, such as `spark` and `engine`. The number may only shrink."""
    assert len(house.repeated_module_names()) <= 24, house.repeated_module_names()


def test_a_class_does_not_span_files():
    found = {line.partition(" is half of ")[0] for line in house.spread_classes()}
    stores = {"join_stage.store.duckdb:DuckDBStore", "join_stage.store.spark.parquet_store:ParquetStore"}
    assert found - BOUND_TO_BACKENDS == stores, "which the engines of joins extend"


def test_every_module_is_used():
    """Pages are found by their folder, and Spark is given the path of its job."""
    assert [name for name in house.unimported_modules() if not re.match(r"mmqjp\.(web\.areas\.|spark_job)", name)] == []


def test_imports_have_no_circle_and_short_chains():
    assert len(house.longest_chain()) <= 24, " -> ".join(house.longest_chain())


@pytest.mark.parametrize(("entered", "most"), [(house.entered_by_a_join, 38), (house.entered_by_a_page, 42)])
def test_few_files_take_part(entered, most):
    files = entered()
    assert len(files) <= most, sorted(files)


def test_the_house_does_not_grow_silently():
    """Each limit leaves room for work in progress; who needs more raises it in a commit that says why."""
    sizes = {
        "modules of the product": (len(house.files_of(*house.PRODUCT)), 238),
        "lines of the product": (house.line_count(*house.PRODUCT), 82_600),
        "lines of tests": (house.line_count("tests"), 49_700),
        "modules of bench": (len(house.files_of("bench")), 30),
        "lines of bench": (house.line_count("bench"), 10_000),
    }
    assert {what: size for what, (size, most) in sizes.items() if size > most} == {}


def test_terms_of_the_glossary_live_where_it_says():
    """Each term of docs/glossary.md names modules or tables that are there."""
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    paths = re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.(?:py|lark))`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []
