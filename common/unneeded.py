"""Hides libraries that others import if they are installed, although nothing here needs them: they take most of a
second.

Only in a process of our own. A library that once did not find another does not look again, and in somebody else's
process that would be missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

_is_own_process = False


def in_own_process() -> None:
    """Notes that this process is ours: from now on `hidden` hides."""
    global _is_own_process
    _is_own_process = True


class _Hidden(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Makes a library seem not to be installed inside, unless it is imported already or the process is not ours."""
    if not _is_own_process or name in sys.modules:
        yield
        return
    finder = _Hidden(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
