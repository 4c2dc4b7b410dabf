"""Random runs, services, edits of the query file and moves of the output, killed anywhere: each line is written once.

    python -m tests.processes.output DIRECTORY SEED...

Each process is a fork of this one, which opens no store before they have ended. Prints what is wrong; nothing if all is
well.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import mmqjp.sinks.files as file_checkpoint
from join_stage.duckdb import DuckDBEngine
from mmqjp.cli import main as command
from mmqjp.engine import Session
from mmqjp.sinks.deliverer import Delivery
from mmqjp.sinks.files import GrowingFile
from tests.support.faults import Point, arm, kill

QUERIES = [
    "FROM S//a->x FOLLOWED BY {x = y, 10} S//a->y PUBLISH pairs",
    "FROM S//a->x JOIN {x = y, 3} S//a->y PUBLISH pairs",
    'FROM S//a->x[. = "0"] PUBLISH zeros',
    'FROM S//a->x[. = "1"]',
    "FROM S//a->x",
    "FROM pairs//match->m PUBLISH readers",
]
STORE = 7
"""So many of the seams are those of the store and the engine."""

SEAMS: list[Point] = [
    *((DuckDBEngine, name) for name in ("begin", "append", "join", "commit", "close")),
    *((Session, name) for name in ("process", "ensure")),
    *((GrowingFile, name) for name in ("prepare", "write", "close")),
    (file_checkpoint, "_cut_back"),
    (Delivery, "save_position"),
    (os, "fsync"),
    (os, "ftruncate"),
]
"""Before and after calls of these a process may be killed."""

STEPS = 7
"""Processes of a case, of which the last one is not killed."""


@dataclass(frozen=True, slots=True)
class Killer:
    """Kills this process before or after a call of a seam, or with half of what a call writes being written."""

    seam: int
    calls: int
    after: bool

    def arm(self) -> None:
        """Has the process that calls this be killed."""
        if self.seam < len(SEAMS):
            arm(SEAMS[self.seam], kill, self.calls, after=self.after)
            return
        write, left = os.write, self.calls

        def half(handle: int, data: bytes) -> int:
            nonlocal left
            left -= 1
            written = write(handle, data if left else data[: len(data) // 2])
            if not left:
                kill()
            return written

        os.write = half  # type: ignore[assignment]


class Case:
    """A state, documents that come, a query file, and two files of output lines that are moved about."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng, self.seed = path, random.Random(seed), seed
        self.outputs = [path / "out.jsonl", path / "other.jsonl"]
        self.drops, self.queries, self.count = path / "drops", path / "queries.xscl", 0
        self.drops.mkdir(parents=True)
        self.elsewhere: list[str] = []
        self.kills = 0
        self.trail: list[str] = []

    def play(self) -> list[str]:
        """What is wrong in the end."""
        self.edit()
        killed = False
        for step in range(STEPS):
            self.come()
            if self.rng.random() < 0.5:
                self.edit()
            if self.rng.random() < 0.4:
                self.move(removing=not killed)
            killer = None if step == STEPS - 1 or self.rng.random() < 0.2 else self.killer()
            arguments = self.arguments(killer)
            self.trail.append(f"{killer or 'to its end'}: {' '.join(map(str, arguments))}")
            status = self.fork(arguments, killer)
            killed = status == -signal.SIGKILL
            self.kills += killed
            if status and not killed:
                return [*self.trail, (self.path / "errors").read_text()]
        wrong = self.wrong()
        return [*self.trail, *wrong] if wrong else []

    def come(self) -> None:
        """Some documents, of which the files that came before have had a few already."""
        with (self.drops / f"{self.count:04}.jsonl").open("w") as file:
            for _ in range(self.rng.randint(0, 4)):
                number = self.count = self.count + 1
                xml = f"<a>{self.rng.randint(0, 1)}</a>"
                file.write(json.dumps({"id": f"d{number}", "time": number * 1_000_000, "xml": xml}) + "\n")
        self.count += 1

    def edit(self) -> None:
        chosen = self.rng.sample(QUERIES, self.rng.randint(1, 3))
        self.queries.write_text(";\n".join(chosen))

    def move(self, *, removing: bool) -> None:
        """Moves a file of lines away, or empties or removes it after what it has was read. (What was not noted of one
        that is gone comes again.)"""
        file = self.rng.choice(self.outputs)
        if not file.exists():
            return
        how = self.rng.choice(["move", "remove", "empty", "replace"] if removing else ["move"])
        self.trail.append(f"{how} {file.name}")
        if how == "move":
            file.rename(file.with_name(f"{file.name}.{self.count}"))
            return
        self.elsewhere += file.read_text().splitlines()
        if how == "empty":
            file.write_bytes(b"")
            return
        file.unlink()
        if how == "replace":
            (self.path / "another").write_text('{"by": "others"}\n')
            (self.path / "another").rename(file)

    def killer(self) -> Killer:
        seam = self.rng.choice([*range(len(SEAMS) + 1), *4 * [*range(STORE, len(SEAMS) + 1)]])
        return Killer(seam, self.rng.choice([1, 1, 1, 2, 3]), self.rng.random() < 0.5)

    def arguments(self, killer: Killer | None) -> list[object]:
        state = ["--state", self.path / "state", "--queries", self.queries, "--engine", "duckdb"]
        # What is killed may write to standard output twice.
        output = [] if killer is None and self.rng.random() < 0.2 else ["--output", self.rng.choice(self.outputs)]
        size = ["--batch-size", self.rng.choice([1, 2, 100])]
        if self.rng.random() < 0.5:
            return ["run", *self.documents(), *state, *output, *size]
        source = ["--source", self.drops, "--trigger", "available-now", "--lateness", "INF", "--log", "json"]
        return ["stream", *source, *state, *output, *size, "--max-ahead", "INF", "--idle-after", "INF"]

    def documents(self) -> list[object]:
        options: list[object] = []
        for path in sorted(self.drops.iterdir()):
            options += ["--documents", path]
        return options

    def fork(self, arguments: list[object], killer: Killer | None) -> int:
        """Its exit status, or minus the signal that killed it."""
        child = os.fork()
        if not child:
            for name, number in ("printed", 1), ("errors", 2):
                os.dup2(os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            if killer is not None:
                killer.arm()
            try:
                command([str(argument) for argument in arguments])
            except SystemExit as end:
                sys.stderr.flush()
                os._exit(int(end.code or 0))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if killer is None:
            self.elsewhere += (self.path / "printed").read_text().splitlines()
        return status

    def files(self) -> list[Path]:
        return [path for name in self.outputs for path in self.path.glob(f"{name.name}*")]

    def wrong(self) -> list[str]:
        """What there is too much or too little of, against the store."""
        found = Counter(line for path in self.files() for line in path.read_text().splitlines())
        found += Counter(self.elsewhere)
        found = Counter({line: count for line, count in found.items() if '"by": "others"' not in line})
        printed = self.path / "kept"
        code = "SELECT id, seq, query, t0, t1, documents, streams, nodes, xml FROM outputs"
        child = os.fork()
        if not child:  # this process has to stay without threads of DuckDB's
            with Session("duckdb", state=self.path / "state") as engine:
                rows = engine.sql(code).to_pylist()
            lines = [json.dumps({**row, "nodes": json.loads(row["nodes"])}, ensure_ascii=False) for row in rows]
            printed.write_text("".join(line + "\n" for line in lines))
            os._exit(0)
        os.waitpid(child, 0)
        kept = Counter(printed.read_text().splitlines())
        return [f"twice: {line}" for line in found - kept] + [f"lost: {line}" for line in kept - found]


def main(directory: str, *seeds: str) -> None:
    outputs = kills = 0
    for seed in map(int, seeds):
        case = Case(Path(directory) / str(seed), seed)
        if wrong := case.play():
            print(f"seed {seed}", *wrong, sep="\n", flush=True)
        outputs += len((case.path / "kept").read_text().splitlines())
        kills += case.kills
    print(f"{outputs} outputs, {kills} kills", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
