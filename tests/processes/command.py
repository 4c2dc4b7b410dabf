"""The command line, as a program that the nursery runs."""

from mmqjp.cli import main as command


def main(*arguments: str) -> None:
    """Does what `mmqjp` with these arguments does."""
    command(list(arguments))
