"""What the benchmarks' commands share: files to write, progress on a terminal, numbers in tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def file(text: str) -> Path:
    """A file that can be written when all is done."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(path.parent)!r}")
    return path


def shown(value: float | None) -> str:
    """A number as it stands in a table."""
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.2f}"


def told(cases: Sequence[T], name: Callable[[T], str]) -> Iterator[T]:
    """The cases; on a terminal it says which one is measured."""
    for number, case in enumerate(cases, 1):
        if sys.stderr.isatty():
            print(f"{number} of {len(cases)}: {name(case)}", file=sys.stderr)
        yield case
