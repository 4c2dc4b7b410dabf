"""Helpers for tests of the service: a service over a state directory that takes each step when the test says so."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

from feeds.tail import Tail
from mmqjp.documents.watermarks import Timing
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue
from mmqjp.service.log import Log
from mmqjp.service.loop import Service, ServiceOptions
from mmqjp.service.pushes import PushQueue
from mmqjp.service.spool import PUSHES, Command, CommandResult, Spool
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.sinks.files import open_sink
from tests.processes import nursery
from tests.processes.nursery import Program
from tests.processes.programs import command

PAIRS = "S/a->x FOLLOWED BY {x = y, 10} S/a->y PUBLISH pairs"


class Events(list[tuple[str, dict[str, object]]]):
    def event(self, name: str, /, **fields: object) -> None:
        self.append((name, fields))

    def named(self, name: str) -> list[dict[str, object]]:
        return [fields for found, fields in self if found == name]


class StopAfter:
    """A stop that is set after it was asked so many times. It never waits."""

    def __init__(self, often: int) -> None:
        self.left = often

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0

    def wait(self, timeout: float) -> bool:
        return self.left < 0


class Directory:
    """A directory with a source, a state and a file of output lines."""

    def __init__(self, path: Path) -> None:
        self.path, self.drops, self.state = path, path / "drops", path / "state"
        self.output = path / "out.jsonl"
        self.drops.mkdir(exist_ok=True, parents=True)
        self.spool, self.pushes = Spool(self.state), Spool(self.state, commands=PUSHES)

    def drop(self, name: str, ids: Iterable[int], text: str = "v") -> None:
        """Writes a file with a document for each number, which is also its time in seconds."""
        documents = ({"id": f"d{n}", "time": n * 1_000_000, "xml": f"<a>{text}</a>"} for n in ids)
        (self.drops / name).write_text("".join(json.dumps(document) + "\n" for document in documents))

    def service(self, engine: Session, log: Log | None = None, **options: Any) -> Service:
        lines = open_sink(self.output, engine.position(OUTPUT_SINK))
        queue, settings = CommandQueue(self.spool), ServiceOptions(pushes=PushQueue(self.pushes, engine), **options)
        return Service(engine, [Tail(self.drops)], lines, queue, Events() if log is None else log, settings)

    def run(
        self, *queries: str, engine: Any = "duckdb", events: Events | None = None, trigger: float | None = None,
        stop: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        """What `mmqjp stream --trigger available-now` does, in this process; or with another trigger, until a stop."""
        with Session(engine, state=self.state) as opened:
            for text in queries:
                opened.subscribe(text)
            self.service(opened, events, **options).run(trigger, stop or StopAfter(10**9))

    def arguments(self, *options: object) -> list[Any]:
        """The arguments of a service on DuckDB, whose log is JSON."""
        given = ["--engine", "duckdb", "--source", self.drops, "--state", self.state, "--log", "json"]
        return ["stream", *given, *options]

    def start(self, *options: object) -> Program:
        return nursery.start(command, *self.arguments(*options))

    def ask(self, do: str, **arguments: Any) -> Command:
        return self.spool.submit(do, arguments)

    def answer(self, asked: Command) -> CommandResult:
        found = self.spool.take_result(asked)
        assert found is not None
        return found

    def pairs(self) -> list[tuple[str, ...]]:
        return [tuple(json.loads(line)["documents"]) for line in self.output.read_text().splitlines()]


def events_of(process: Program | subprocess.Popen[str], name: str) -> Iterator[dict[str, Any]]:
    """The events of a name in the log of a process, as they come."""
    assert process.stderr is not None
    yield from (event for event in map(json.loads, process.stderr) if event["event"] == name)


def streaming(place: Directory, engine: Session, session: Any, events: Events, **options: Any) -> Any:
    from mmqjp.service.streaming import StreamingService
    from mmqjp.spark.source import FileSource, SourcePath, file_reader, streaming_frame

    named = {name: options.pop(name) for name in ("max_document", "grain") if name in options}
    sizes = {"most": options.get("batch_size", 5_000), "most_bytes": options.get("batch_bytes", 16 << 20)}
    if within := options.pop("in_batches_of", None):  # smaller than the micro-batches
        options["batch_size"] = within
    source = FileSource((SourcePath(place.drops, options.pop("feeds", None)),), **named, **sizes)
    checkpoint = place.state / "checkpoint" / "files"
    by_tasks = options.pop("by_tasks", "frame" not in options)
    reader = file_reader(session, source, checkpoint) if by_tasks else None
    frame = options.pop("frame", None) or streaming_frame(session, source, place.state, checkpoint)
    lines = open_sink(place.output, engine.position(OUTPUT_SINK))
    queue = CommandQueue(place.spool)
    settings = ServiceOptions(**options)
    return StreamingService(engine, source.tails(), lines, queue, events, settings, frame, checkpoint, reader)


def stream(
    place: Directory, session: Any, *queries: str, events: Events | None = None, timing: Timing | None = None,
    **options: Any,
) -> Events:  # fmt: skip
    """What `mmqjp stream --engine spark --trigger available-now` does, in this process."""
    seen = Events() if events is None else events
    with Session(session, state=place.state, **asdict(timing or Timing())) as opened:
        for text in queries:
            opened.subscribe(text)
        streaming(place, opened, session, seen, **options).run(None, Event())
    return seen
