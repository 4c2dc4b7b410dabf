"""What tasks look into: files that a process keeps open from task to task, and the rows of R_T."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from pathlib import Path

import numpy as np

from join_stage.arrays import Ints
from join_stage.signature.disk.paged_records import PagePool
from join_stage.signature.disk.run_file import DamagedRun, EdgeClass, RunFile
from join_stage.signature.path_classes import PathClasses
from join_stage.signature.row_index import RowIndex
from join_stage.signature.satisfied_rows import SatisfiedRowsCache
from join_stage.store.protocol import StoreError

MOST_FILES = 64
"""The files that are kept open."""


class KeptFiles:
    """Files of runs, open as long as they are among the last that were used. Files never change."""

    def __init__(self) -> None:
        self._pool = PagePool()
        self._files: OrderedDict[Path, RunFile] = OrderedDict()

    def open(self, path: Path) -> RunFile:
        """Raises StoreError if there is no such file where this process runs."""
        file = self._files.get(path)
        if file is None:
            try:
                file = self._files[path] = RunFile(path, self._pool)
            except DamagedRun as error:
                raise StoreError(
                    f"{error}, for an executor of Spark: the state directory must be on a file system that the driver "
                    "and all executors have at the same place"
                ) from error
            if len(self._files) > MOST_FILES:
                self._files.popitem(last=False)
        self._files.move_to_end(path)
        return file

    def keep(self, paths: Container[Path]) -> None:
        """Lets go of all files but these: the space of those that were removed is free only then."""
        for path in [path for path in self._files if path not in paths]:
            del self._files[path]


FILES = KeptFiles()
"""The files of this process."""


class RowMeanings:
    """The rows of R_T, and what one task works out about them. It starts anew with each task, so that a task that is
    repeated elsewhere finds the same in the same order."""

    def __init__(self, rows: RowIndex) -> None:
        self.rows, self.classes = rows, PathClasses(rows)
        self.sets = SatisfiedRowsCache(rows, self.classes)

    def number_of(self, one: EdgeClass) -> int:
        """The number of a path class."""
        return self.classes.number_of_edges(one.groups, one.same, one.stream)

    def numbers(self, file: RunFile) -> Ints:
        """The numbers of the path classes of a file."""
        return np.array([self.number_of(one) for one in file.head.classes], np.int64)
