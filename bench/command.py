"""What the commands of the benchmarks share: output files, progress on a terminal, numbers in tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def file(text: str) -> Path:
    """An output file, whose directory must exist. It is written at the end."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(path.parent)!r}")
    return path


def shown(value: float | None) -> str:
    """A number as a table shows it; "" for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.2f}"


def with_progress(cases: Sequence[T], name: Callable[[T], str]) -> Iterator[T]:
    """Yields the cases. On a terminal, prints which one is being measured."""
    for number, case in enumerate(cases, 1):
        if sys.stderr.isatty():
            print(f"{number} of {len(cases)}: {name(case)}", file=sys.stderr)
        yield case
