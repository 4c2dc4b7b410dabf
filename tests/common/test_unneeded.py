"""Libraries that nothing here needs are not loaded by our own processes, and are not hidden from others."""

import subprocess
import sys

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


def test_nothing_is_hidden_in_the_process_of_others():
    code = "from mmqjp.process import without_pandas; without_pandas(); import sys; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_what_was_hidden_can_be_imported_later():
    code = (
        "from common.tools import in_own_process, hidden; from mmqjp.process import without_pandas\n"
        "in_own_process(); without_pandas()\n"
        "import pandas, pyarrow\n"
        "print(len(pyarrow.table({'a': [1]}).to_pandas()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
