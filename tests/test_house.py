"""The house: a public name stands in one module, chains of imports are short, and a class is in one file. `make house`
prints the figures that these limits are about. A limit may only shrink.

And the project as a whole: its version, its wheel, pages that name every target and package, regular expressions.
"""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from re import _constants as codes
from re import _parser as sre
from types import ModuleType
from typing import Any

import grimp
import pytest

from tests.support import house
from tests.support.places import ROOT
from xscl import lalr

pytestmark = pytest.mark.xdist_group("house")  # one worker parses the product once

PROTOCOLS = {
    "main": "the entry point of a program",
    "add": "the command of that name, of feeds and of sinks",
    "copy_files": "each kind of store copies its own files",
    "show": "the command of that name, of documents and of sinks",
}
"""Functions that stand in several modules because a protocol names them."""


def test_a_public_name_stands_in_one_module():
    assert house.standing_twice(house.classes_and_aliases) == {}
    assert house.standing_twice(house.functions).keys() == PROTOCOLS.keys()


def test_names_of_modules_seldom_repeat():
    """Many are of the same part, such as `spark` and `engine`. The number may only shrink."""
    assert len(house.repeated_module_names()) <= 24, house.repeated_module_names()


def test_a_class_does_not_span_files():
    found = {line.partition(" is half of ")[0] for line in house.spread_classes()}
    stores = {"join_stage.store.spark.parquet_store:ParquetStore"}
    # The engine of joins extends it. `mmqjp.answers.events_run` binds pattern_stage to their errors.
    assert found == stores | {"pattern_stage.partition.kernel:SparkRunner"}


def test_every_module_is_used():
    """Pages are found by their folder, and Spark is given the path of its job."""
    assert [name for name in house.unimported_modules() if not re.match(r"mmqjp\.(web\.areas\.|spark_job)", name)] == []


def test_imports_have_no_circle_and_short_chains():
    assert len(house.longest_chain()) <= 25, " -> ".join(house.longest_chain())


@pytest.mark.parametrize(("entered", "most"), [(house.entered_by_a_join, 40), (house.entered_by_a_page, 44)])
def test_few_files_take_part(entered, most):
    files = entered()
    assert len(files) <= most, sorted(files)


def test_the_house_does_not_grow_silently():
    """Each limit leaves room for work in progress; who needs more raises it in a commit that says why."""
    sizes = {
        "modules of the product": (len(house.files_of(*house.PRODUCT)), 270),
        "lines of the product": (house.line_count(*house.PRODUCT), 97_800),
        "lines of tests": (house.line_count("tests"), 54_500),
        "modules of bench": (len(house.files_of("bench")), 30),
        "lines of bench": (house.line_count("bench"), 10_600),
    }
    assert {what: size for what, (size, most) in sizes.items() if size > most} == {}


def test_terms_of_the_glossary_live_where_it_says():
    """Each term of docs/glossary.md names modules or tables that are there."""
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    paths = re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.(?:py|lark))`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []


# ------------------------------------------------------------ the project as a whole

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def product_modules() -> list[ModuleType]:
    names = map(house.module_name, house.files_of(*house.PRODUCT))
    return [import_module(name) for name in names if not name.endswith("__main__")]


def test_version_is_written_in_one_place():
    number = PROJECT["project"]["version"]
    assert version("mmqjp") == number
    again = [path for path in house.files_of(*PACKAGES) if f'"{number}"' in path.read_text("utf-8")]
    assert again == []


def test_every_package_of_ours_is_listed_and_described_and_only_tests_is_not_installed():
    present = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert present - set(PACKAGES) == {"tests"}
    described = re.findall(r"^\| `([a-z_]+)` \|", CONTRIBUTING, re.MULTILINE)
    for named in (PROJECT["tool"]["mypy"]["packages"], PROJECT["tool"]["importlinter"]["root_packages"], described):
        assert set(named) == present


def test_every_module_of_the_product_says_its_job_in_its_first_line():
    texts = ((path, path.read_text("utf-8")) for path in house.files_of(*PACKAGES))
    assert [path for path, text in texts if not text.startswith(('"""', 'r"""'))] == []


def test_no_module_imports_itself_in_a_circle():
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while leaves := {module for module, imported in imports.items() if not imported & imports.keys()}:
        for leaf in leaves:
            del imports[leaf]
    assert sorted(imports) == [], "these are in circles, or import what is"


def test_readme_is_short_and_begins_with_the_demo():
    assert len(README.splitlines()) <= 120
    assert README.index("make demo") < README.index("make test")


def test_makefile_declares_the_targets_that_are_described():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    declared = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert declared is not None
    targets = set(declared[1].split())
    assert set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE)) == targets
    assert set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", README + CONTRIBUTING, re.MULTILINE)) == targets


def test_wheel_holds_every_module_and_data_file_no_tests_the_command_and_the_licence(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # as pip would build it
    (path,) = tmp_path.glob("*.whl")
    wheel = zipfile.ZipFile(path)
    held = set(wheel.namelist())
    for package in PACKAGES:
        files = {path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert {path.relative_to(ROOT).as_posix() for path in files} <= held
    metadata = f"mmqjp-{PROJECT['project']['version']}.dist-info"
    assert {name.partition("/")[0] for name in held} == {*PACKAGES, metadata}
    assert {f"mmqjp/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= held
    assert {"xscl/xscl.lark", "mmqjp/demo/demo.xscl", f"{metadata}/licenses/LICENSE"} <= held
    assert "mmqjp = mmqjp.__main__:main" in wheel.read(f"{metadata}/entry_points.txt").decode()


# Regular expressions find the same on each Python that is supported. Before 3.11.5, a possessive group that is tried
# once more, and fails after some characters, goes on behind them (CPython issue 106052). With an empty alternative at
# its end it does not fail: it matches nothing, and that ends it. A possessive quantifier of a single character is right
# everywhere, and so is an atomic group.

HARMLESS = {codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN}


def groups_that_may_fail(part: Any) -> Iterator[Any]:
    """The groups in a parsed expression that have a possessive quantifier and may fail."""
    if isinstance(part, sre.SubPattern):
        for code, value in part:
            if code is codes.POSSESSIVE_REPEAT and not (len(value[2]) == 1 and is_harmless(*value[2][0])):
                yield value[2]
            yield from groups_that_may_fail(value)
    elif isinstance(part, tuple | list):
        for one in part:
            yield from groups_that_may_fail(one)


def is_harmless(code: Any, value: Any) -> bool:
    return code in HARMLESS or (code is codes.BRANCH and len(value[1][-1]) == 0)


def loses_its_place(pattern: re.Pattern[Any]) -> bool:
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    return any(groups_that_may_fail(sre.parse(pattern.pattern, flags)))


def test_no_possessive_group_can_fail():
    """In expressions, or their methods, that modules have as constants or in a table, or that a grammar makes."""
    values = [value for module in product_modules() for value in vars(module).values()]
    values += [one for value in values if isinstance(value, dict) for one in value.values()]
    lark = lalr.lark_of("xscl")
    scan = lalr._scan(lark.terminals, lark.ignore_tokens, frozenset({"FROM"}))
    owners = [getattr(value, "__self__", value) for value in [*values, scan]]
    found = [owner for owner in owners if isinstance(owner, re.Pattern)]
    assert len(found) > 100 and ")*+" in found[-1].pattern
    assert [pattern.pattern for pattern in found if loses_its_place(pattern)] == []


@pytest.mark.parametrize(
    ("text", "loses"),
    [("(?:b|(?!--)-+)*+", True), ("x(?:(?:ab)*c)?+", True), ("(?:b|(?!--)-+|)*+", False), ("[ab]*+(?>a+b|)c++", False)],
)
def test_those_that_may_fail_are_found(text: str, loses: bool):
    assert loses_its_place(re.compile(text)) is loses
