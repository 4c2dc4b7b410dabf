"""Numbers of documents, and times and lengths of time with their bounds, whose sums and differences have 64 bits."""

from typing import NewType

DocId = NewType("DocId", int)
"""The number of a document in a store. A later document has a greater one."""

Micros = NewType("Micros", int)  # a time since 1970, in UTC, or a length of time, in microseconds

NO_DOCUMENT = DocId(-1)  # less than the number of any document

EARLIEST, LATEST = Micros(-(2**61)), Micros(2**61)  # times of documents lie between these

BEGINNING, END = Micros(-(2**62)), Micros(2**62)  # times before and after all others, deadlines included

LONGEST_WINDOW = 2**62
"""A window longer than any interval of documents. A window is at most as long: one without end, where it must have a
length, and a longer one in a text."""

INFINITE = 2**63 - 1
"""A number above all others. As a window, it is none."""


def deadline(time: int, window: int) -> int:
    """Returns the end of a window, at most the last time before END."""
    return min(time + window, END - 1)
