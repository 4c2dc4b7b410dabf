"""The workloads of the thesis for event patterns over feeds (4.6.3), by RUMOR's rules (5.5.2) and hybrid ones (5.5.3).

Their statements are texts of the language. Each sweep is a figure of the thesis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bench.patterns_workload import SECOND
from common.arrays import Ints
from pattern_stage.columns import Column, Columns, Floats
from pattern_stage.plan import RULE_NAMES, RuleName
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Stream
from xscl.event_lower import lower_event_query
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.syntax import EventStreams

Name = Literal["feeds", "rumor", "hybrid"]

SITES, POPULARITY, ITEMS = 415, 100, 26_623
PROCESSES = 104
WITHOUT_CHANNELS: tuple[RuleName, ...] = tuple(rule for rule in RULE_NAMES if rule != "channels")


@dataclass(frozen=True)
class Workload:
    """A template with its parameters. `domain` is that of constants, `window` the greatest one in seconds, `capacity`
    the number of streams on a channel, `sel` the share of events that satisfy a start condition.

    Without `channels`, streams of equal events come each for itself, and operators over selections share nothing."""

    figure: str
    template: str
    queries: int
    events: int
    domain: int = 1000
    window: int = 1000
    zipf: float = 1.5
    capacity: int = 10
    sel: float = 0.5
    channels: bool = True

    @property
    def rules(self) -> Sequence[RuleName]:
        """The rules of the optimiser that are on: all of them where streams of their own keep things apart."""
        return RULE_NAMES if self.channels or self.template == "channel" else WITHOUT_CHANNELS

    @property
    def has_channels(self) -> bool:
        """Whether its statements read streams that one channel can have."""
        return self.template in ("channel", "hybrid")


@dataclass(frozen=True)
class Given:
    """The events of a stream: the second of each, its number among those of all streams, and columns. Those of integers
    stand for strings."""

    schema: Schema
    seconds: Ints
    numbers: Ints
    columns: tuple[Column, ...]

    def take(self, texts: Texts) -> Columns:
        """The events as the kernel takes them."""
        times = (self.seconds + 1) * SECOND
        values = tuple(
            texts.codes(f"v{value}" for value in column.tolist()) if kind == "string" else column
            for (_, kind), column in zip(self.schema, self.columns, strict=True)
        )
        return Columns(times, times, values, self.numbers.reshape(-1, 1))


_RUMOR: Schema = (("a0", "string"), *((f"a{place}", "number") for place in range(1, 10)))
_ITEM: Schema = (("site", "string"), ("channel", "string"), ("popularity", "number"))
_LOAD: Schema = (("pid", "string"), ("load", "number"))


def streams(one: Workload) -> dict[str, Given]:
    """The events of a workload."""
    chance = np.random.default_rng(1)
    if one.figure == "4.18":
        sites = _zipf(chance, SITES, 1, one.events)
        popularity: Floats = 1.0 + _zipf(chance, POPULARITY, 1, one.events).astype(np.float64)
        channels: Ints = sites * 10 + chance.integers(0, 3, one.events)
        times = np.arange(one.events)
        return {"Items": Given(_ITEM, times, times, (sites, channels, popularity))}
    if one.figure.startswith("5.10"):
        seconds = np.repeat(np.arange(one.events // PROCESSES), PROCESSES)
        pids = np.tile(np.arange(PROCESSES), one.events // PROCESSES)
        load = chance.random(len(pids)) * 100
        return {"Load": Given(_LOAD, seconds, np.arange(len(pids)), (pids, load))}
    made = {}
    for first, name in enumerate(("S", "T")):
        times = np.arange(first, one.events, 2)
        values = chance.integers(0, 1000, (10, len(times)))
        made[name] = Given(_RUMOR, times, times, (values[0] % one.domain, *values[1:].astype(np.float64)))
    if one.template == "channel" and not one.channels:
        same = made.pop("S")
        return {f"S{place}": same for place in range(one.capacity)} | made
    return made


def statements(one: Workload) -> Iterator[str]:
    """The texts of the statements."""
    chance = np.random.default_rng(2)
    count = one.queries
    if one.figure == "4.18":
        for site, least in zip(chance.integers(0, SITES, count), chance.integers(0, POPULARITY, count), strict=True):
            yield _feed(one.template, f'site = "v{site}"', f"popularity > {least}")
        return
    if one.figure.startswith("5.10"):
        smoothed = "(AGGREGATE {avg(load) AS load BY pid OVER 60 s} Load)"
        for place in range(count):
            start = f"(load * 1000 + {100 * place / count}) % 100 < {100 * one.sel}"
            fold = f"FOLD {{$2.pid = $1.pid, $2.load > $.load, }} {smoothed}"
            yield f"FILTER {{load > 10}} (FILTER {{{start}}} {smoothed} {fold}) WITHIN 600 s"
        return
    windows = one.window - _zipf(chance, one.window, one.zipf, count)
    constants = _zipf(chance, one.domain, one.zipf, 2 * count)
    for place, window in enumerate(windows.tolist()):
        match one.template:
            case "constants":
                first, second = constants[2 * place : 2 * place + 2]
                yield f'FILTER {{a0 = "v{first}"}} S NEXT {{$2.a0 = "v{second}"}} T WITHIN {window} s'
            case "NEXT":
                yield f"S NEXT {{$2.a0 = $1.a0}} T WITHIN {window} s"
            case "FOLD":
                yield f"S FOLD {{$2.a0 = $1.a0, $2.a1 > $.a1, }} T WITHIN {window} s"
            case "channel":
                number = place % one.capacity
                stream = "S" if one.channels else f"S{number}"
                source = f"FILTER {{a2 >= 0 - {number}}} {stream}"
                yield f"{source} NEXT {{$2.a0 = $1.a0}} T WITHIN {window} s"


def _feed(template: str, site: str, popular: str) -> str:
    first = f"FILTER {{{site}}} Items"
    rising = f"NEXT {{$2.{site} AND $2.channel = $1.channel AND $2.popularity > $1.popularity}} Items"
    match template:
        case "Stateless":
            return f"FILTER {{{site} AND {popular}}} Items"
        case "Concatenation":
            following = f"NEXT {{$2.{site} AND $2.{popular}}} Items"
            return f"FILTER {{{site} AND {popular}}} Items {following} {following} WITHIN 100 s"
        case "Parameterization":
            return f"{first} {rising} {rising} WITHIN 100 s"
    chooses = f"$2.{site} AND $2.channel = $1.channel AND $2.popularity > $.popularity"
    return f"{first} FOLD {{{chooses}, , }} Items WITHIN 100 s"


def lowered(texts: Sequence[str], given: Mapping[str, Given]) -> list[Stream]:
    """What the statements mean."""
    known = EventStreams({name: one.schema for name, one in given.items()})
    once: dict[str, Stream] = {}
    for text in dict.fromkeys(texts):
        script = parse_script(text, events=known)
        (query,) = script.event_queries
        once[text] = lower_event_query(query, schemas_of(script, known))
    return [once[text] for text in texts]


def _zipf(chance: np.random.Generator, count: int, power: float, size: int) -> Ints:
    weights = 1 / np.arange(1, count + 1) ** power
    return chance.choice(count, size, p=weights / weights.sum())


# ---------------------------------------------------------------- the figures


def cases(name: Name, queries: Sequence[int] | None, events: int | None, *, quick: bool) -> list[Workload]:
    """The sweeps of a benchmark. With `quick` there are fewer and smaller ones."""
    match name:
        case "feeds":
            numbers = queries or ([4_000] if quick else [10_000, 20_000, 40_000])
            count = events or (3_000 if quick else ITEMS)
            templates = ("Stateless", "Concatenation", "Parameterization", "Iteration")
            return [Workload("4.18", template, number, count) for template in templates for number in numbers]
        case "hybrid":
            base = Workload("5.10a", "hybrid", 10, events or PROCESSES * (100 if quick else 600))
            by_number = [replace(base, queries=number) for number in queries or ([10] if quick else [1, 10, 30, 100])]
            return by_number + [replace(base, figure="5.10b", sel=sel) for sel in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    count = events or (4_000 if quick else 100_000)
    base = Workload("5.8a", "constants", 1000, count)
    numbers = queries or ([1_000] if quick else [1_000, 10_000, 100_000])
    made = [replace(base, queries=number) for number in numbers]
    if not quick:
        made += [replace(base, figure="5.8b", domain=domain) for domain in (10, 100, 1000)]
        made += [replace(base, figure="5.8c", window=window) for window in (10, 100, 1000, 10_000)]
        made += [replace(base, figure="5.8d", zipf=zipf) for zipf in (1.2, 1.6, 2.0)]
    fewer = queries or ([100] if quick else [1_000, 10_000])
    for figure, template in (("5.9a", "NEXT"), ("5.9b", "FOLD")):
        made += [replace(base, figure=figure, template=template, queries=number) for number in fewer]
    shared = replace(base, figure="5.9c", template="channel", queries=100 if quick else 1000)
    made += [replace(shared, queries=number) for number in queries or ([10, 100] if quick else [10, 100, 1_000])]
    return made + [replace(shared, figure="5.9d", capacity=size) for size in ((1, 10) if quick else (1, 2, 5, 10, 20))]
