"""Runs a program with a limit on its processor time, however busy the machine is."""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial

from tests.support.places import ROOT

SECONDS = 20
"""The time for inputs that took minutes or more when they were not read in linear time."""


def printed(program: str, seconds: int = SECONDS) -> str:
    """What a Python program prints. An assertion fails if it exceeds its time or fails."""
    limit = partial(resource.setrlimit, resource.RLIMIT_CPU, (seconds, seconds))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=limit, timeout=600)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout
