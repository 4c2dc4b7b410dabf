"""What all benchmarks share: lines of results, tables, files, options, timing in turns, and fresh processes."""

import argparse
import csv
import ctypes
import gc
import json
import os
import pickle
import signal
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import format_exc
from typing import Any, TypeVar

from lxml import etree
from rich import box
from rich.console import Console
from rich.table import Table

from join_stage.plans import PLANS

ENGINES = ("duckdb", "spark")

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


COMMON = (
    *("bench", "case", "engine", "plan", "seconds", "rows", "baseline", "speedup", "floor", "over_floor"),
    "extrapolated",
)
"""The keys that all lines have."""


@dataclass(frozen=True)
class Line:
    """A line of `--json`: median seconds, `speedup` over the baseline, `over_floor` in floors, and own `details`."""

    bench: str
    case: Mapping[str, object]
    engine: str | None
    plan: str | None
    seconds: float
    rows: float
    baseline: str | None = None
    speedup: float | None = None
    floor: float | None = None
    extrapolated: bool = False
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def over_floor(self) -> float | None:
        return None if self.floor is None else self.seconds / self.floor

    def flat(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in COMMON} | dict(self.details)

    def figure(self, key: str) -> object:
        """A figure by its key: of the line, of its case, or of its details; None if it was not measured. `marked` is
        the speedup, with a tilde if the baseline was extrapolated from a sample. `KEY * FACTOR` scales."""
        name, _, factor = key.partition(" * ")
        if name == "marked":
            return "" if self.speedup is None else "~" * self.extrapolated + format_figure(self.speedup)
        found = self.case[name] if name in self.case else self.flat().get(name)
        return found * float(factor) if factor and isinstance(found, int | float) else found

    def number(self, key: str) -> float:
        found = self.figure(key)
        return float(found) if isinstance(found, int | float) else 0.0


def speedup(baseline: float | None, seconds: float) -> float | None:
    return None if baseline is None else baseline / seconds


def beside(
    lines: Sequence[Line], by: Callable[[Line], Hashable], is_base: Callable[[Line], bool], name: str, detail: str = ""
) -> list[Line]:
    """Adds its group's baseline, if any, to every other line, and the ratio of their times as `detail`."""
    base = {by(line): line.seconds for line in lines if is_base(line)}

    def compared(line: Line) -> Line:
        seconds = base.get(by(line))
        if seconds is None or is_base(line):
            return line
        more = {detail: line.seconds / seconds} if detail else {}
        return replace(line, baseline=name, speedup=seconds / line.seconds, details={**line.details, **more})

    return list(map(compared, lines))


def write_json(lines: Iterable[Line], path: Path) -> None:
    path.write_text("".join(json.dumps(line.flat()) + "\n" for line in lines), encoding="utf-8")


def write_csv(lines: Iterable[Line], path: Path) -> None:
    """Writes a column for each key of any case and for each figure of any line."""
    rows = [{"bench": line.bench, **line.case, **line.flat()} for line in lines]
    write_rows([{key: row[key] for key in row if key != "case"} for row in rows], path)


def write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    names = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(names))
        writer.writeheader()
        writer.writerows(rows)


TableColumn = tuple[str, Callable[[Line], object]]


def columns(spec: str, **computed: Callable[[Line], object]) -> tuple[TableColumn, ...]:
    """The columns of a table, separated by ` | `: `HEADING = KEY`, or `KEY` alone where it is the heading too.

    Keys are those of `Line.figure`, or names of `computed`.

    >>> [heading for heading, _ in columns("queries | = plan | ms = seconds * 1e3")]
    ['queries', '', 'ms']
    """

    def column(part: str) -> TableColumn:
        heading, equal, key = part.partition("= ")
        key = key if equal else heading
        return heading.strip(), computed.get(key, lambda line: line.figure(key))

    return tuple(map(column, spec.split(" | ")))


def print_table(lines: Sequence[Line], title: str, of: Sequence[TableColumn]) -> None:
    print_rows(title, [heading for heading, _ in of], [[value(line) for _, value in of] for line in lines])


def print_rows(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], width: int = 180) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*map(format_figure, row))
    Console(width=width).print(table)


def format_figure(value: object) -> str:
    """A figure with three significant digits; "" for None."""
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        case int():
            return f"{value:,}"
    return str(value)


def bare_parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with the option that all benchmarks have, --json."""
    parser = argparse.ArgumentParser(prog=f"mmqjp bench {name}", description=description)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write JSON lines, one for each measurement")
    return parser


def benchmark_parser(name: str, description: str, *, plot: bool = True) -> argparse.ArgumentParser:
    parser = bare_parser(name, description)
    parser.add_argument("--queries", type=integers, metavar="N,N", help="numbers of queries, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer cases, in about two minutes")
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write the table")
    if plot:
        parser.add_argument("--plot", type=output_file, metavar="PREFIX", help="draw PREFIX.svg and PREFIX.png")
    return parser


def engine_parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = benchmark_parser(name, description)
    parser.add_argument("--engine", choices=ENGINES, default="duckdb", help="default: duckdb")
    parser.add_argument("--plan", choices=PLANS, help="measure one plan; default: all")
    return parser


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the options. Refuses --plot without matplotlib now rather than at the end."""
    options = parser.parse_args()
    if options.plot and not find_spec("matplotlib"):
        parser.error("the plot needs matplotlib: pip install matplotlib")
    return options


def output_file(text: str) -> Path:
    """A file that is written at the end; its directory must exist."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(path.parent)!r}")
    return path


def integers(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not some numbers separated by commas")
    return [int(part) for part in text.split(",")]


def with_progress(cases: Sequence[_T], name: Callable[[_T], str] = str) -> Iterator[_T]:
    """Yields the cases. On a terminal, prints which one is being measured."""
    for number, case in enumerate(cases, 1):
        if sys.stderr.isatty():
            print(f"{number} of {len(cases)}: {name(case)}", file=sys.stderr)
        yield case


def save(lines: Sequence[Line], options: argparse.Namespace) -> None:
    if options.csv:
        write_csv(lines, options.csv)
    if options.json:
        write_json(lines, options.json)


def report(
    lines: Sequence[Line],
    title: str,
    of: Sequence[TableColumn],
    options: argparse.Namespace,
    draw: Callable[[Sequence[Line], Path], None] | None = None,
) -> None:
    print_table(lines, title, of)
    save(lines, options)
    if draw and options.plot:
        draw(lines, options.plot)


Way = Callable[[], object]


def timed(work: Callable[[], _T], clock: Callable[[], float] = time.perf_counter) -> tuple[float, _T]:
    """The seconds that some work takes, and what it returns."""
    begin = clock()
    result = work()
    return clock() - begin, result


def seconds_of(work: Way, clock: Callable[[], float] = time.perf_counter) -> float:
    return timed(work, clock)[0]


def charged(
    function: Callable[..., Any], charge: Callable[[float], object], clock: Callable[[], float] = time.perf_counter
) -> Callable[..., Any]:
    """The function, which also tells `charge` the seconds of each call."""

    def call(*arguments: Any, **options: Any) -> Any:
        begin = clock()
        try:
            return function(*arguments, **options)
        finally:
            charge(clock() - begin)

    return call


def in_turns(ways: Mapping[str, Way], rounds: int, patience: float = 2.0) -> dict[str, list[float]]:
    """The seconds of each way in each round. A way that has taken more than `patience` seconds skips later rounds."""
    gc.collect()
    gc.freeze()  # as `mmqjp run` does: registered queries need no collection
    gc.disable()  # as the engine does while it processes a batch
    try:
        return _turns({name: partial(seconds_of, work) for name, work in ways.items()}, rounds, patience)
    finally:
        gc.enable()
        gc.unfreeze()


def _turns(ways: Mapping[str, Callable[[], float]], rounds: int, patience: float) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            if sum(taken[name]) < patience:
                gc.collect()
                taken[name].append(work())
    return taken


def medians(ways: Mapping[str, Callable[[], float]], rounds: int, patience: float = 20.0) -> dict[str, float]:
    """The median seconds of ways measured in turns. One that took more than `patience` seconds skips later rounds."""
    return {name: statistics.median(seconds) for name, seconds in _turns(ways, rounds, patience).items()}


def turns_of(
    ways: Mapping[_Key, Callable[[], tuple[float, _T]]], turns: int
) -> tuple[dict[_Key, list[float]], dict[_Key, _T]]:
    """The seconds of each way in each turn, and the results of the last turn."""
    taken: dict[_Key, list[float]] = {name: [] for name in ways}
    found: dict[_Key, _T] = {}
    for _ in range(turns):
        for name, work in ways.items():
            seconds, found[name] = work()
            taken[name].append(seconds)
    return taken, found


def compared_turns(
    ways: Mapping[str, Callable[[], tuple[float, _T]]], turns: int, case: object, difference: str
) -> tuple[dict[str, list[float]], _T]:
    """The seconds of each way by turn, and their common result. Raises AssertionError with the case if one differs."""
    taken, found = turns_of(ways, turns)
    first = next(iter(found.values()))
    for name, result in found.items():
        assert result == first, f"{name} has other {difference} in {case}"
    return taken, first


def ratio(taken: Sequence[float], baseline: Sequence[float]) -> float:
    """The median of the ratios of the rounds: a machine that is slow for a while is slow for both."""
    return statistics.median(one / other for one, other in zip(taken, baseline, strict=False))


def parse_floor(texts: Iterable[bytes]) -> None:
    """The floor of whole paths: lxml parses every document, and every tag is read."""
    for text in texts:
        for element in etree.fromstring(text).iter():
            element.tag  # noqa: B018  # reading it is the work


def resident_memory() -> int | None:
    """Bytes of this process in memory after garbage collection, freed memory given back; None if unknown."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_fresh_process(work: Callable[[_Item], _T], item: _Item) -> _T:
    """Returns `work(item)`, computed in a new process, and raises its errors. `work` is a function of a module. The
    process is spawned, as a forked one would have this heap. A `ProcessPoolExecutor` may wait for ever after Ctrl-C."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, work, item), daemon=True)
    process.start()
    sender.close()  # The process has the only one now: if it dies, there is nothing more to wait for.
    found: _T
    try:
        found, error = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process of {item} ended with status {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if error is not None:
        raise error
    return found


def _send(sender: Connection, work: Callable[[_Item], _T], item: _Item) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's, which ends this one.
    try:
        outcome = work(item), None
    except Exception as error:
        sender.send((None, _portable(error, f"It was raised in a process of its own:\n{format_exc()}")))
    else:
        sender.send(outcome)


def _portable(error: Exception, note: str) -> Exception:
    """The error with a note, or one with its text if it cannot be sent: those of Py4J hold connections."""
    error.add_note(note)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its parts raise
        return RuntimeError(note)
    return error
