"""Bounds of times and lengths of time, in microseconds: what they allow has sums and differences of 64 bits."""

EARLIEST, LATEST = -(2**61), 2**61  # times of documents lie between these
BEGINNING, END = -(2**62), 2**62  # times before and after all others, deadlines included

LONGEST_WINDOW = 2**62
"""A window longer than any interval of documents. A window is at most as long: one without end, where it must have a
length, and a longer one in a text."""

INFINITE = 2**63 - 1
"""A number above all others. As a window, it is none."""


def deadline(time: int, window: int) -> int:
    """Returns the end of a window, at most the last time before END."""
    return min(time + window, END - 1)
