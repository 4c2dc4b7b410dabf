"""The program as a process: what a signal, a locale and a closed standard output do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import write_documents, write_queries

INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["mmqjp", "--version"]
from mmqjp.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["mmqjp.cli", "lxml", "mmqjp.engine", "mmqjp.commands.stream"])
def test_ctrl_c_while_modules_load_is_one_line(module: str):
    code = INTERRUPTED_WHILE_LOADING.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mmqjp: interrupted\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_is_utf_8_whatever_the_locale(encoding: str, tmp_path: Path):
    queries = write_queries(tmp_path, "S//a->x PUBLISH all_a")
    document = {"id": "é…", "time": "2026-01-01", "xml": "<a>ß 書 \U0001f600</a>"}
    documents = write_documents(tmp_path / "d.jsonl", [document])
    locale = {"PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = ["run", "--engine", "duckdb", "--queries", str(queries), "--documents", str(documents)]
    done = subprocess.run(
        [sys.executable, "-m", "mmqjp", *arguments], capture_output=True, env=os.environ | locale, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.decode().splitlines()
    assert json.loads(line)["documents"] == ["é…"] and "ß 書 \U0001f600" in json.loads(line)["xml"]
