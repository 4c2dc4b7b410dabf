"""The options of the benchmarks of stage 2, and their results as a table, CSV and JSON lines."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.command import file
from bench.stage1_plot import missing
from bench.stage2_engines import ENGINES
from join_stage.protocol import PLANS


@dataclass(frozen=True)
class Line:
    """One line of `--json`. Seconds are medians; `speedup` is the baseline's time over this one's, `over_floor` this
    one's over the floor's. `details` are the benchmark's own figures."""

    bench: str
    case: Mapping[str, object]
    engine: str | None
    plan: str
    seconds: float
    rows: int
    baseline: str | None
    speedup: float | None
    floor: float | None = None
    extrapolated: bool = False
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def over_floor(self) -> float | None:
        return None if self.floor is None else self.seconds / self.floor

    def flat(self) -> dict[str, object]:
        """All figures by their names, those of the contract first."""
        return {
            "bench": self.bench,
            "case": self.case,
            "engine": self.engine,
            "plan": self.plan,
            "seconds": self.seconds,
            "rows": self.rows,
            "baseline": self.baseline,
            "speedup": self.speedup,
            "floor": self.floor,
            "over_floor": self.over_floor,
            "extrapolated": self.extrapolated,
            **self.details,
        }


def speedup(baseline: float | None, seconds: float) -> float | None:
    return None if baseline is None else baseline / seconds


def write_json(lines: Iterable[Line], path: Path) -> None:
    path.write_text("".join(json.dumps(line.flat()) + "\n" for line in lines), encoding="utf-8")


def write_csv(lines: Iterable[Line], path: Path) -> None:
    """A column for each key of a case and for each figure of any line."""
    rows = []
    for line in lines:
        flat = line.flat()
        case = flat.pop("case")
        assert isinstance(case, dict)
        rows.append({"bench": flat.pop("bench"), **case, **flat})
    names = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(names))
        writer.writeheader()
        writer.writerows(rows)


Column = tuple[str, Callable[[Line], object]]


def show(lines: Sequence[Line], title: str, columns: Sequence[Column]) -> None:
    """Prints a table."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for place, (heading, _) in enumerate(columns):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for line in lines:
        table.add_row(*(shown(value(line)) for _, value in columns))
    Console(width=180).print(table)


def shown(value: object) -> str:
    """A figure as a table shows it, with three significant digits."""
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        case int():
            return f"{value:,}"
    return str(value)


def marked(line: Line) -> str:
    """The speedup, marked where the baseline is scaled up from a sample."""
    return "" if line.speedup is None else ("~" if line.extrapolated else "") + shown(line.speedup)


# ------------------------------------------------------------ the command


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that the benchmarks of stage 2 share."""
    made = plain_parser(name, description)
    made.add_argument("--engine", choices=ENGINES, default="duckdb", help="default: duckdb")
    made.add_argument("--plan", choices=PLANS, help="measure one plan; default: all")
    return made


def plain_parser(name: str, description: str) -> argparse.ArgumentParser:
    """These options without those that choose an engine or a plan."""
    made = argparse.ArgumentParser(prog=f"mmqjp bench {name}", description=description)
    made.add_argument("--queries", type=numbers, metavar="N,N", help="numbers of queries, separated by commas")
    add_outputs(made)
    made.add_argument("--plot", type=file, metavar="PREFIX", help="draw PREFIX.svg and PREFIX.png")
    return made


def add_outputs(made: argparse.ArgumentParser) -> None:
    """The options for less, and for files."""
    made.add_argument("--quick", action="store_true", help="fewer cases, in about two minutes")
    made.add_argument("--csv", type=file, metavar="FILE", help="write the table")
    made.add_argument("--json", type=file, metavar="FILE", help="write JSON lines, one for each measurement")


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The parsed options. Files that could not be written at the end are refused now."""
    options = made.parse_args()
    if options.plot and (lacking := missing()):
        made.error(lacking)
    return options


def keep(lines: Sequence[Line], options: argparse.Namespace) -> None:
    """Writes the files that the options name, except plots."""
    if options.csv:
        write_csv(lines, options.csv)
    if options.json:
        write_json(lines, options.json)


def numbers(text: str) -> list[int]:
    """Positive numbers, separated by commas."""
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not some numbers separated by commas")
    return [int(part) for part in text.split(",")]
