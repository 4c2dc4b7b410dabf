"""Libraries that nothing here needs are not loaded by our own processes, and are not hidden from others."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.argv = ["mmqjp", "demo", "--engine", "duckdb"]
import atexit
atexit.register(lambda: print(sorted({"pandas", "matplotlib", "pyarrow", "igraph"} & sys.modules.keys())))
import mmqjp.__main__
mmqjp.__main__.main()
"""


def test_the_program_does_without_what_only_takes_time():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert "matplotlib" not in done.stdout.splitlines()[-1]
    assert done.stdout.splitlines()[-1] in ("['igraph', 'pyarrow']", "['pyarrow']"), done.stderr


LIGHT = """
import sys, xscl
print({'elementpath', 'lxml', 'pyarrow', 'pyspark'} & set(sys.modules))
import feeds.tail, feeds.fetch.fetcher, mmqjp.cli
print('pyspark' in sys.modules)
from mmqjp.process import without_pandas
without_pandas()
print('pandas' in sys.modules)  # nothing is hidden in the process of others
"""
HIDDEN = """
from common.tools import in_own_process, hidden; from mmqjp.process import without_pandas
in_own_process(); without_pandas()
import pandas, pyarrow
print(len(pyarrow.table({'a': [1]}).to_pandas()))
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [(LIGHT, "set()\nFalse\nTrue\n"), (HIDDEN, "1\n")],
    ids=["light packages", "what was hidden can be imported later"],
)
def test_what_a_process_loads(code: str, printed: str):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == printed
