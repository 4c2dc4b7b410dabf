"""Runs a program with a limit on its processor time, however busy the machine is."""

from tests.processes import nursery

SECONDS = 20
"""The time for inputs that took minutes or more when they were not read in linear time."""


def execute(program: str) -> None:
    exec(program, {"__name__": "__main__"})


def printed(program: str, seconds: int = SECONDS) -> str:
    """What a Python program prints. An assertion fails if it exceeds its time or fails."""
    done = nursery.run(execute, program, seconds=seconds)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout
