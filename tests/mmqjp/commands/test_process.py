"""The program as a process: what a signal, a locale and a closed standard output do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import write_documents, write_queries

INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["mmqjp", "stream", "--help"]
from mmqjp.__main__ import main
main()
"""


def python(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """The exit status of a process, and what it prints to either output."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, env=os.environ | environment, timeout=300, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("module", ["mmqjp.cli", "mmqjp.commands.serve"])
def test_ctrl_c_while_modules_load_is_one_line(module: str):
    assert python("-c", INTERRUPTED_WHILE_LOADING.format(module=module)) == (130, "", "mmqjp: interrupted\n")


def test_output_is_utf_8_whatever_the_locale(tmp_path: Path):
    queries = write_queries(tmp_path, "S//a->x PUBLISH all_a")
    document = {"id": "é…", "time": "2026-01-01", "xml": "<a>ß 書 \U0001f600</a>"}
    documents = write_documents(tmp_path / "d.jsonl", [document])
    locale = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = ["run", "--engine", "duckdb", "--queries", str(queries), "--documents", str(documents)]
    status, printed, said = python("-m", "mmqjp", *arguments, **locale)
    assert status == 0, said
    (line,) = printed.splitlines()
    assert json.loads(line)["documents"] == ["é…"] and "ß 書 \U0001f600" in json.loads(line)["xml"]


LIGHT = """
import sys
from mmqjp.cli import main
for option in ("--version", "--help"):
    try:
        main([option])
    except SystemExit as end:
        assert not end.code, end.code
heavy = {'pyspark', 'duckdb', 'numpy', 'pyarrow', 'lxml', 'lark', 'feeds', 'xscl', 'join_stage'}
sys.exit(repr(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)
"""


def test_what_prints_only_loads_only_what_it_needs():
    status, _, said = python("-c", LIGHT)
    assert (status, said) == (0, "")


LEFT_BEHIND = """
import sys, threading, duckdb
import mmqjp.cli
from mmqjp.process import QUESTION_THREAD

def ask():
    connection = duckdb.connect()
    begun.set()
    connection.execute("SELECT count(*) FROM range(60000000) a(x), range(20) b(y) WHERE x * y % 7 = 3").fetchall()

def answer():
    threading.Thread(target=ask, name=QUESTION_THREAD, daemon=True).start()
    begun.wait()
    print("answered")
    sys.exit(3)

begun = threading.Event()
mmqjp.cli.main = answer
from mmqjp.__main__ import main
main()
"""


ENDING = """
import atexit, sys, threading
import mmqjp.cli

class Kept:
    def __del__(self):
        print("freed")

def answer():
    kept.append(Kept())
    atexit.register(print, "at the end")
    {before}
    print("answered")
    sys.exit(3)

kept = []
mmqjp.cli.main = answer
from mmqjp.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("before", "printed"),
    [
        ("pass", ["answered", "at the end"]),
        ("threading.Timer(0.2, print, ['later']).start()", ["answered", "later", "at the end", "freed"]),
    ],
)
def test_a_program_frees_nothing_at_its_end_but_ends_what_runs(before: str, printed: list[str]):
    status, found, said = python("-c", ENDING.format(before=before))
    assert (status, found.splitlines(), said) == (3, printed, "")


FAILING = """
import sys
import mmqjp.cli

mmqjp.cli.main = lambda: sys.exit("not flat: memory")
from mmqjp.__main__ import main
main()
"""


def test_a_benchmark_that_fails_says_why():
    assert python("-c", FAILING) == (1, "", "not flat: memory\n")


def test_a_query_that_goes_on_when_the_program_ends_does_not_abort_it():
    assert python("-c", LEFT_BEHIND) == (3, "answered\n", "")
