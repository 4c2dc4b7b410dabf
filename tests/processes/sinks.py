"""Services with a sink of each kind on this machine, killed anywhere: what each sink has in the end, against the store.

    python -m tests.processes.sinks DIRECTORY SEED...

Each service is a fork of this process, which opens no store. Prints what is wrong; nothing if all is well.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path

import pyarrow.parquet as pq

import mmqjp.sinks.definition as options
from common import files as files_module
from join_stage.duckdb import DuckDBEngine
from mmqjp.cli import main as command
from mmqjp.engine import Session
from mmqjp.sinks.atom import AtomSink
from mmqjp.sinks.files import GrowingFile
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.parquet import ParquetFile, ParquetSink
from mmqjp.sinks.webhook import CommandReceiver, MailReceiver
from tests.support.faults import Point, arm, kill

QUERIES = """
FROM S//a->x FOLLOWED BY {x = y, 10} S//a->y PUBLISH pairs;
FROM S//a->x[. = "0"] PUBLISH zeros
"""
CONFIGURATION = """
[sinks.lines]
kind = "jsonl"
path = "lines.jsonl"
queries = ["pairs"]
[sinks.tables]
kind = "parquet"
path = "tables"
rows = 3
every = "EVERY"
[sinks.feed]
kind = "atom"
path = "feed"
url = "https://example.org/"
[sinks.program]
kind = "command"
command = ["sh", "-c", "cat >> got.json"]
wait = "2us"
most = 4
[sinks.post]
kind = "mail"
server = "smtp://127.0.0.1:PORT"
starttls = false
to = "ann@example.org"
every = "1us"
queries = ["zeros"]
"""

SEAMS: list[Point] = [
    (CommandReceiver, "send"),
    (MailReceiver, "send"),
    (SinkManager, "_store"),
    (SinkManager, "noted"),
    (SinkManager, "committed"),
    (GrowingFile, "prepare"),
    (GrowingFile, "write"),
    (ParquetSink, "prepare"),
    (ParquetSink, "write"),
    (ParquetFile, "finish"),
    (AtomSink, "write_matches"),
    (AtomSink, "_put"),
    (files_module, "sync_directory"),
    (Path, "rename"),
    (os, "fsync"),
    (DuckDBEngine, "commit"),
]
"""Before and after calls of these a service may be killed: the sending, the writing and the noting of each kind."""

STEPS = 7
"""Services of a case, of which the last two are not killed."""


class Case:
    """A state, documents that come, and the configuration with the sinks."""

    def __init__(self, path: Path, seed: int, port: int, mails: Path) -> None:
        self.path, self.rng, self.port, self.mails = path, random.Random(seed), port, mails
        self.drops, self.count, self.kills = path / "drops", 0, 0
        self.drops.mkdir(parents=True)
        (path / "queries.xscl").write_text(QUERIES)
        self.trail: list[str] = []

    def play(self) -> list[str]:
        """What is wrong in the end."""
        for step in range(STEPS):
            last = step >= STEPS - 2
            self.come()
            every = "1us" if last else self.rng.choice(["1h", "1us"])  # in the end, what is open is closed
            text = CONFIGURATION.replace("PORT", str(self.port)).replace("EVERY", every)
            (self.path / "mmqjp.toml").write_text(text)
            seam = (
                None
                if last
                else (self.rng.randrange(len(SEAMS)), self.rng.choice([1, 1, 2, 3]), self.rng.random() < 0.5)
            )
            status = self.fork(seam)
            self.kills += status == -signal.SIGKILL
            self.trail.append(f"{every} {seam and SEAMS[seam[0]][1]} {seam}: {status}")
            if status not in (0, -signal.SIGKILL):
                return [*self.trail, (self.path / "errors").read_text()]
        wrong = list(self.wrong())
        return [*self.trail, *wrong] if wrong else []

    def come(self) -> None:
        with (self.drops / f"{self.count:04}.jsonl").open("w") as file:
            for _ in range(self.rng.randint(1, 5)):
                number = self.count = self.count + 1
                xml = f"<a>{self.rng.randint(0, 1)}</a>"
                file.write(json.dumps({"id": f"d{number}", "time": number * 1_000_000, "xml": xml}) + "\n")
        self.count += 1

    def fork(self, seam: tuple[int, int, bool] | None) -> int:
        """Runs a service. Returns its exit status, or minus the signal that killed it."""
        child = os.fork()
        if not child:
            for name, number in ("printed", 1), ("errors", 2):
                os.dup2(os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.chdir(self.path)
            options.MINUTE = options.SECOND = 0  # the least that `every` may be
            if seam is not None:
                place, calls, after = seam
                arm(SEAMS[place], kill, calls, after=after)
            given = ["--source", "drops", "--queries", "queries.xscl", "--state", "state", "--output", "out.jsonl"]
            more = ["--trigger", "available-now", "--lateness", "INF", "--max-ahead", "INF", "--idle-after", "INF"]
            size = ["--batch-size", self.rng.choice(["1", "3", "100"])]
            try:
                command(["stream", "--engine", "duckdb", "--log", "json", *given, *more, *size])
            except SystemExit as end:
                sys.stderr.flush()
                os._exit(int(end.code or 0))
        self.rng.random()  # the child has drawn, too
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    # ------------------------------------------------------------ what came of it

    def wrong(self) -> Iterator[str]:
        """What a sink has too much or too little of."""
        kept = self.kept()
        self.outputs = len(kept)
        pairs, zeros = ([seq for seq, query in kept.items() if query == name] for name in ("pairs", "zeros"))
        lines = [json.loads(line)["seq"] for line in (self.path / "lines.jsonl").read_text().splitlines()]
        yield from differences("jsonl", lines, pairs)
        files = sorted((self.path / "tables").glob("*.parquet"))
        yield from differences("parquet", [seq for file in files for seq in seqs_of(file)], list(kept))
        documents = [path.read_text() for path in (self.path / "feed").glob("*.atom")]
        entries = {int(seq) for text in documents for seq in re.findall(r"<!-- (\d+) ", text)}
        yield from differences("atom", list(entries), list(kept))  # the newest are in an archive, too
        yield from differences("command", list(self.commanded()), list(kept))
        yield from differences("mail", list(self.mailed(set(zeros))), zeros)
        for path in self.path.rglob(".*draft*"):
            yield f"left: {path}"

    def kept(self) -> dict[int, str]:
        """The outputs of the store: their queries by their numbers."""
        child = os.fork()
        if not child:  # this process has to stay without threads of DuckDB's
            with Session("duckdb", state=self.path / "state") as engine:
                rows = engine.sql("SELECT seq, query FROM outputs ORDER BY seq").to_pylist()
            (self.path / "kept").write_text(json.dumps([[row["seq"], row["query"]] for row in rows]))
            os._exit(0)
        os.waitpid(child, 0)
        return dict(json.loads((self.path / "kept").read_text()))

    def commanded(self) -> Iterator[int]:
        """The numbers that messages to the program cover, of equal messages once."""
        lines = (self.path / "got.json").read_text().splitlines()
        for message in map(json.loads, dict.fromkeys(lines)):
            shown = [output["seq"] for output in message["outputs"]]
            yield from (*shown, *range(shown[-1] + 1, shown[-1] + 1 + message["more"]))  # it wants all

    def mailed(self, zeros: set[int]) -> Iterator[int]:
        """The numbers that mails cover, of equal mails once. Two with the same id must be the same."""
        mails: dict[str, bytes] = {}
        for path in self.mails.iterdir():
            content = path.read_bytes()
            id = str(message_from_bytes(content)["Message-ID"])
            assert mails.setdefault(id, content) == content, id
            path.unlink()
        for id in mails:
            found = re.fullmatch(r"<post\.(\d+)-(\d+)\.msg_\w+@example\.org>", id)
            assert found is not None, id
            yield from (seq for seq in range(int(found[1]), int(found[2]) + 1) if seq in zeros)


def differences(kind: str, found: list[int], wanted: list[int]) -> Iterator[str]:
    """Yields what there is too much or too little of."""
    more, less = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    if more or less:
        yield f"{kind}: too much {sorted(more.elements())}, too little {sorted(less.elements())}"


def seqs_of(path: Path) -> list[int]:
    """The numbers in a Parquet file. Its name says the first and the last."""
    seqs = [int(seq) for seq in pq.read_table(path, columns=["seq"], use_threads=False)["seq"].to_pylist()]
    assert path.name == f"{seqs[0]:012d}-{seqs[-1]:012d}.parquet"
    return seqs


@contextmanager
def mail_process(mails: Path) -> Iterator[int]:
    """A process with an SMTP server that writes each mail to a file. Its port."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        from tests.support.mail_server import mail_server

        with mail_server(directory=mails) as server:
            os.write(write_end, f"{server.port}\n".encode())
            signal.pause()
    os.close(write_end)
    try:
        with os.fdopen(read_end) as told:
            yield int(told.readline())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main(directory: str, *seeds: str) -> None:
    outputs = kills = 0
    mails = Path(directory) / "mails"
    mails.mkdir(parents=True)
    with mail_process(mails) as port:
        for seed in map(int, seeds):
            case = Case(Path(directory) / str(seed), seed, port, mails)
            if wrong := case.play():
                print(f"seed {seed}", *wrong, sep="\n", flush=True)
            outputs += getattr(case, "outputs", 0)
            kills += case.kills
    print(f"{outputs} outputs, {kills} kills", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
