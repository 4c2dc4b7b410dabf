"""What a worker process keeps from task to task: open files, and what follows from the rows of R_T."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np

from join_stage.signature.arrays import Ints
from join_stage.signature.disk.paged_records import PagePool
from join_stage.signature.disk.run_file import DamagedRun, EdgeClass, RunFile
from join_stage.signature.path_classes import PathClasses
from join_stage.signature.row_index import RowIndex
from join_stage.signature.satisfied_rows import SatisfiedRowsCache
from join_stage.store.protocol import StoreError

MOST_FILES = 64
"""The files that are kept open."""

MOST_CLASSES = 100_000
"""With more path classes, all are forgotten: those of documents that are gone are among them."""


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


FILES = KeptFiles()
"""The files of this process."""


class ShippedRows:
    """The rows of R_T as executors have them. What a process works out about them stays with them."""

    def __init__(self, rows: RowIndex) -> None:
        self.rows = rows
        self._begin()

    def _begin(self) -> None:
        self.classes = PathClasses(self.rows)
        self.sets = SatisfiedRowsCache(self.rows, self.classes)

    def __getstate__(self) -> RowIndex:
        return self.rows

    def __setstate__(self, rows: RowIndex) -> None:
        self.__init__(rows)  # type: ignore[misc]  # which is all that there is to restore

    def renew(self) -> None:
        """Forgets path classes if they have become many. No run that has their numbers may be in use."""
        if len(self.classes) > MOST_CLASSES:
            self._begin()

    def number_of(self, one: EdgeClass) -> int:
        """The number of a path class."""
        return self.classes.number_of_edges(one.groups, one.same, one.stream)

    def numbers(self, file: RunFile) -> Ints:
        """The numbers of the path classes of a file."""
        return np.array([self.number_of(one) for one in file.head.classes], np.int64)
