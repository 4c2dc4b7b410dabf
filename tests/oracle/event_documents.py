"""Which documents come too late for event statements, by the oracle (docs/semantics.md, section 21).

In particular:
- A document that comes too late moves the horizon as any other: it is behind it.
- As long as a stream has no documents there is no horizon, and nothing is late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tests.oracle.bindings import Stored


def in_time(
    batches: Iterable[Sequence[Stored]], streams: Collection[str], settle: Mapping[str, int]
) -> tuple[list[Stored], list[Stored]]:
    """The documents whose events are not late, and those whose are. `streams` are the external streams behind any event
    statement; `settle` has how many microseconds each waits."""
    greatest: dict[str, int] = {}
    horizon: int | None = None
    kept: list[Stored] = []
    late: list[Stored] = []
    for batch in batches:
        for document in batch:
            (kept if horizon is None or document.t1 >= horizon else late).append(document)
        for document in batch:
            if document.stream in streams:
                greatest[document.stream] = max(document.t1, greatest.get(document.stream, document.t1))
        if len(greatest) == len(set(streams)):
            now = min(most - settle[stream] for stream, most in greatest.items())
            horizon = now if horizon is None else max(now, horizon)
    return kept, late
