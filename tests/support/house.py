"""Figures of the house: modules, names that stand twice, chains of imports, files that a document or a page enters.

`python -m tests.support.house` prints them, as `make house` does. `tests/test_house.py` holds them to limits.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.places import ROOT

PRODUCT = ("common", "feeds", "join_stage", "mmqjp", "pattern_stage", "templates", "xpath_stage", "xscl")

JOIN = """FROM S//item->a[./title->t1] FOLLOWED BY {lower-case(t1) = lower-case(t2), 2 d} S//item->b[./title->t2]
PUBLISH told_twice"""


def files_of(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def line_count(*packages: str) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in files_of(*packages))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of the product's modules, by dotted name."""
    return {module_name(path): ast.parse(path.read_text("utf-8")) for path in files_of(*PRODUCT)}


def run_time_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, without those for type checkers."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from run_time_statements(statement.orelse)
        elif isinstance(statement, ast.If | ast.Try):
            handlers = [handler.body for handler in getattr(statement, "handlers", ())]
            for block in (statement.body, statement.orelse, *handlers):
                yield from run_time_statements(block)


def imported_modules(tree: ast.AST, statements: Iterator[ast.AST] | None = None) -> set[str]:
    """The product's modules that statements import; by default all of a tree, also those inside functions."""
    known, found = trees(), set()
    for statement in ast.walk(tree) if statements is None else statements:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                inner = f"{statement.module}.{alias.name}"
                found.add(inner if inner in known else statement.module or "")
        elif isinstance(statement, ast.Import):
            found.update(alias.name for alias in statement.names)
    return found & known.keys()


@cache
def longest_chain() -> tuple[str, ...]:
    """A longest chain of modules of which each imports the next at run time. Raises ValueError for a circle."""
    imports = {name: imported_modules(tree, run_time_statements(tree.body)) for name, tree in trees().items()}
    chains: dict[str, tuple[str, ...]] = {}

    def chain_from(name: str, above: tuple[str, ...]) -> tuple[str, ...]:
        if name in above:
            raise ValueError(f"a circle of imports: {' -> '.join((*above, name))}")
        if name not in chains:
            below = [chain_from(other, (*above, name)) for other in sorted(imports[name] - {name})]
            chains[name] = (name, *max(below, key=len, default=()))
        return chains[name]

    return max((chain_from(name, ()) for name in sorted(imports)), key=len)


def unimported_modules() -> list[str]:
    """The modules that no module names: neither in an import nor as text (commands and processes are named so)."""
    used: set[str] = set()
    for name, tree in trees().items():
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        words = {word.partition(":")[0] for text in texts for word in re.findall(r"[\w.:]+", text) if "." in word}
        used |= (imported_modules(tree) | words) - {name}
    return [name for name in trees() if name not in used and not path_of(name).endswith(("__init__.py", "__main__.py"))]


def path_of(name: str) -> str:
    stem = name.replace(".", "/")
    return f"{stem}/__init__.py" if (ROOT / stem).is_dir() else f"{stem}.py"


def standing_twice(names_of: Callable[[ast.Module], Iterator[str]]) -> dict[str, list[str]]:
    """The public names that stand in two modules or more, with these."""
    places: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees().items():
        for name in names_of(tree):
            if not name.startswith("_"):
                places[name].add(module)
    return {name: sorted(modules) for name, modules in sorted(places.items()) if len(modules) > 1}


def repeated_module_names() -> dict[str, list[str]]:
    """The file names, but for `__init__` and `__main__`, that several modules have, with these modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in sorted(trees()):
        places[module.rpartition(".")[2]].append(module)
    repeated = {name: modules for name, modules in places.items() if len(modules) > 1 and name != "__main__"}
    return {name: modules for name, modules in repeated.items() if not path_of(modules[-1]).endswith("__init__.py")}


def classes_and_aliases(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            is_variable = isinstance(statement.value, ast.Call) and last_name(statement.value.func) == "TypeVar"
            for target in targets:
                if (
                    isinstance(target, ast.Name)
                    and target.id[0].isupper()
                    and not target.id.isupper()
                    and not is_variable
                ):
                    yield target.id


def last_name(node: ast.expr) -> str | None:
    """The name of an expression, without what it is a part of; without parameters of its type."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def functions(tree: ast.Module) -> Iterator[str]:
    yield from (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def spread_classes() -> list[str]:
    """Classes that only one class of another module extends and that nobody creates: halves of one class."""
    defined, bases, created = dict[str, str](), defaultdict[str, list[str]](list), set[str | None]()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                created.add(last_name(node.func))
            if isinstance(node, ast.ClassDef):
                parents = [name for base in node.bases if (name := last_name(base))]
                if "Protocol" not in parents:
                    defined[node.name] = module
                for parent in parents:
                    bases[parent].append(f"{module}:{node.name}")
    return sorted(
        f"{module}:{name} is half of {bases[name][0]}"
        for name, module in defined.items()
        if len(bases[name]) == 1 and not bases[name][0].startswith(f"{module}:") and name not in created
    )


def entered_files(action: Callable[[], Any]) -> set[str]:
    """The product's files whose functions an action calls, in any thread that it starts."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    known = {str(path) for path in files_of(*PRODUCT)}
    return {str(Path(name).relative_to(ROOT)) for name in entered & known}


def entered_by_a_join() -> set[str]:
    """What two documents that join enter, on DuckDB, where six documents came before."""
    import mmqjp

    def document(number: int) -> mmqjp.Document:
        return mmqjp.Document(f"d{number}", f"<item><title>T {number // 2}</title></item>", "S", number + 1)

    with mmqjp.Engine("duckdb") as engine:
        engine.subscribe(JOIN)
        for number in range(6):
            engine.process([document(number)])
        outputs: list[Any] = []
        entered = entered_files(
            lambda: outputs.extend([*engine.process([document(6)]), *engine.process([document(7)])])
        )
    assert outputs
    return entered


def entered_by_a_page() -> set[str]:
    """What the page of a query with a match enters that is read for the first time."""
    import mmqjp
    from mmqjp.engine import Session
    from tests.support.web import browser, site_of

    now = int(time.time()) * 1_000_000
    with Session("duckdb", now=lambda: now) as session:
        session.subscribe(f"{JOIN}; FROM S//nothing->x PUBLISH nobody")
        items = [mmqjp.Document(f"d{n}", "<item><title>T</title></item>", "S", now - 2 + n) for n in range(2)]
        assert len(list(session.process(items))) == 1
        with browser(site_of(session, now=lambda: now)) as warm:
            assert warm.get("/q/nobody").status_code == 200

        def visit() -> None:
            with browser(site_of(session, now=lambda: now)) as visitor:
                assert visitor.get("/q/told_twice").status_code == 200

        return entered_files(visit)


def figures() -> dict[str, int]:
    return {
        "modules of the product": len(files_of(*PRODUCT)),
        "lines of the product": line_count(*PRODUCT),
        "modules of bench": len(files_of("bench")),
        "lines of bench": line_count("bench"),
        "lines of tests": line_count("tests"),
        "longest chain of imports": len(longest_chain()),
        "public classes and type aliases in several modules": len(standing_twice(classes_and_aliases)),
        "public functions in several modules": len(standing_twice(functions)),
        "names of modules that several have": len(repeated_module_names()),
        "files that two joining documents enter": len(entered_by_a_join()),
        "files that the page of a query enters": len(entered_by_a_page()),
    }


if __name__ == "__main__":
    for what, number in figures().items():
        print(f"{number:>7,}  {what}")
    print("The longest chain:", " -> ".join(longest_chain()))
