"""What `mmqjp bench feeds` measures, on this process or on Spark: one line of `--json`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measurement:
    """One line of `--json`: `rows` documents in `seconds` (a median), on one core; the share of each in it.

    On Spark it is all cores, and `speedup` is over the `baseline`, the same in this process.
    """

    bench: str
    case: dict[str, str | int]
    seconds: float
    rows: int
    rows_a_second: float
    shares: dict[str, float] = field(default_factory=dict)
    floor: float | None = None
    over_floor: float | None = None
    engine: str | None = None
    plan: None = None
    baseline: str | None = None
    speedup: float | None = None
    extrapolated: bool = False
