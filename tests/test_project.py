"""The project as a whole: its version, its wheel, and pages that name every target and package."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import grimp
import pytest

from tests.support.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_version_is_written_in_one_place():
    number = PROJECT["project"]["version"]
    assert version("mmqjp") == number
    again = [path for package in PACKAGES for path in modules(package) if f'"{number}"' in path.read_text("utf-8")]
    assert again == []


def test_every_package_of_ours_is_listed_and_only_tests_is_not_installed():
    present = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert present - set(PACKAGES) == {"tests"}
    for contracts in (PROJECT["tool"]["mypy"]["packages"], PROJECT["tool"]["importlinter"]["root_packages"]):
        assert set(contracts) == present


def test_every_module_of_the_product_says_its_job_in_its_first_line():
    silent = [path for package in PACKAGES for path in modules(package) if not opens_with_a_docstring(path)]
    assert silent == []


def test_no_module_imports_itself_in_a_circle():
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while leaves := {module for module, imported in imports.items() if not imported & imports.keys()}:
        for leaf in leaves:
            del imports[leaf]
    assert sorted(imports) == [], "these are in circles, or import what is"


def opens_with_a_docstring(path: Path) -> bool:
    return path.read_text("utf-8").startswith(('"""', 'r"""'))


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


def test_every_package_is_described():
    described = set(re.findall(r"^\| `([a-z_]+)` \|", CONTRIBUTING, re.MULTILINE))
    assert described == {*PACKAGES, "tests"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built as pip would build it."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = directory.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_module_and_data_file_and_no_tests(wheel):
    held = set(wheel.namelist())
    for package in PACKAGES:
        files = {path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert {path.relative_to(ROOT).as_posix() for path in files} <= held
    assert {"xscl/xscl.lark", "mmqjp/demo/demo.xscl", "join_stage/store/spark/log4j2.properties"} <= held
    metadata = f"mmqjp-{PROJECT['project']['version']}.dist-info"
    assert {name.partition("/")[0] for name in held} == {*PACKAGES, metadata}


def test_wheel_installs_the_command_and_carries_its_licence(wheel):
    metadata = f"mmqjp-{PROJECT['project']['version']}.dist-info"
    assert "mmqjp = mmqjp.__main__:main" in wheel.read(f"{metadata}/entry_points.txt").decode()
    assert b"Apache License" in wheel.read(f"{metadata}/licenses/LICENSE")
    described = wheel.read(f"{metadata}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in described
    assert "Requires-Python: >=3.11" in described
