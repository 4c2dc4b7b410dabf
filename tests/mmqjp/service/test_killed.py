"""Runs and services that are killed anywhere, again and again: in the end each output has arrived, and once wherever
that is promised."""

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, chdir
from email import message_from_bytes
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from mmqjp.engine import Session
from mmqjp.sinks import definition
from tests.generate.crawls import crawl
from tests.generate.seeds import at_length, seeds
from tests.processes import nursery
from tests.processes.kills import HALF
from tests.processes.programs import command
from tests.support.feed_server import hook_server
from tests.support.mail_server import mail_server
from tests.support.service import PAIRS, Directory, StopAfter

KILLS = 3 if at_length() else 2
"""How often something is killed before it is let to its end."""

STREAM = ("stream", "--engine", "duckdb", "--trigger", "available-now", "--log", "json", "--idle-after", "INF")


class Life:
    seams: ClassVar[list[str]]
    last = 1
    """Processes that are not killed, in the end."""
    step: Callable[[tuple[str, int] | None], None]
    wrong: Callable[[], Iterator[str]]
    """What there is too much or too little of in the end."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rng, self.drops = path, Random(seed), path / "drops"
        self.drops.mkdir(parents=True, exist_ok=True)
        self.steps = self.documents = self.kills = 0
        self.trail: list[str] = []

    def play(self) -> None:
        while self.kills < KILLS:
            seam = self.rng.choice(self.seams)
            moment = seam if seam == HALF else f"{self.rng.choice(('before', 'after'))} {seam}"
            self.step((moment, self.rng.choice([1, 1, 1, 2, 3])))
            self.steps += 1
        for _ in range(self.last):
            self.step(None)
            self.steps += 1

    def come(self, count: int) -> None:
        numbers = range(self.documents + 1, self.documents + count + 1)
        self.documents += count
        rows = ({"id": f"d{n}", "time": n * 1_000_000, "xml": f"<a>{self.rng.randint(0, 1)}</a>"} for n in numbers)
        (self.drops / f"{self.steps:04}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, kill: tuple[str, int] | None, program: Callable[..., object], *arguments: object) -> Any:
        done = nursery.run(program, *arguments, kill=kill)
        self.trail.append(f"{kill or 'to its end'}: {done.args}")
        self.kills += done.returncode == -signal.SIGKILL
        assert done.returncode in ((0,) if kill is None else (0, -signal.SIGKILL)), (self.trail, done.stderr)
        return done

    def kept(self) -> list[dict[str, Any]]:
        with Session("duckdb", state=self.path / "state") as engine:
            found: list[dict[str, Any]] = [output.to_dict() for output in engine.outputs()]
            return sorted(found, key=lambda output: int(output["seq"]))


def differences(kind: str, found: Iterable[Any], wanted: Iterable[Any]) -> Iterator[str]:
    more, less = Counter(found), Counter(wanted)
    if more != less:
        yield f"{kind}: too much {[*(more - less).elements()]}, too little {[*(less - more).elements()]}"


class Lines(Life):
    """Runs and services that write lines, to two files that are moved about, with a query file that is edited."""

    QUERIES = (
        "FROM S//a->x FOLLOWED BY {x = y, 10} S//a->y PUBLISH pairs",
        "FROM S//a->x JOIN {x = y, 3} S//a->y PUBLISH pairs",
        'FROM S//a->x[. = "0"] PUBLISH zeros',
        'FROM S//a->x[. = "1"]',
        "FROM S//a->x",
        "FROM pairs//match->m PUBLISH readers",
    )
    writing: ClassVar = [*(f"GrowingFile.{name}" for name in ("prepare", "write", "close")), "os.fsync", "os.ftruncate"]
    writing += ["files._cut_back", "OutputDelivery.save_position", HALF]
    seams: ClassVar = [f"DuckDBEngine.{name}" for name in ("begin", "append", "join", "commit", "close")]
    seams += ["CommitMark.note", "Session.process", "Session.ensure", *5 * writing]

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, seed)
        self.outputs = [path / "out.jsonl", path / "other.jsonl"]
        self.elsewhere: list[str] = []
        self.killed = False
        self.edit()

    def step(self, kill: tuple[str, int] | None) -> None:
        self.come(self.rng.randint(0, 4))
        if self.rng.random() < 0.5:
            self.edit()
        if self.rng.random() < 0.4:
            self.move(removing=not self.killed)
        kills = self.kills
        done = self.run(kill, command, *self.arguments(kill is None))
        if kill is None:  # what is killed may write to standard output twice
            self.elsewhere += done.stdout.splitlines()
        self.killed = self.kills > kills

    def edit(self) -> None:
        (self.path / "queries.xscl").write_text(";\n".join(self.rng.sample(self.QUERIES, self.rng.randint(1, 3))))

    def move(self, *, removing: bool) -> None:
        """Moves a file of lines away, or empties or removes it after what it has was read. (What was not noted of one
        that is gone comes again.)"""
        file = self.rng.choice(self.outputs)
        if not file.exists():
            return
        how = self.rng.choice(["move", "remove", "empty", "replace"] if removing else ["move"])
        self.trail.append(f"{how} {file.name}")
        if how == "move":
            file.rename(file.with_name(f"{file.name}.{self.steps}"))
            return
        self.elsewhere += file.read_text().splitlines()
        if how == "empty":
            file.write_bytes(b"")
            return
        file.unlink()
        if how == "replace":
            (self.path / "another").write_text('{"by": "others"}\n')
            (self.path / "another").rename(file)

    def arguments(self, last: bool) -> list[object]:
        common = ["--state", self.path / "state", "--queries", self.path / "queries.xscl", "--max-ahead", "INF"]
        common += ["--batch-size", self.rng.choice([1, 2, 100])]
        if not (last and self.rng.random() < 0.2):
            common += ["--output", self.rng.choice(self.outputs)]
        if self.rng.random() < 0.5:
            documents = chain.from_iterable(("--documents", path) for path in sorted(self.drops.iterdir()))
            return ["run", "--engine", "duckdb", *documents, *common[:4], *common[6:]]
        return [*STREAM, "--source", self.drops, "--lateness", "INF", *common]

    def wrong(self) -> Iterator[str]:
        files = [path for name in self.outputs for path in self.path.glob(f"{name.name}*")]
        lines = chain(self.elsewhere, *(path.read_text().splitlines() for path in files))
        found = (line for line in lines if '"by": "others"' not in line)
        yield from differences("lines", found, (json.dumps(row, ensure_ascii=False) for row in self.kept()))


def command_without_least(*arguments: object) -> None:
    vars(definition).update(MINUTE=0, SECOND=0)
    command(*arguments)


class Sinks(Life):
    """Services with a sink of each kind on this machine."""

    QUERIES = 'FROM S//a->x FOLLOWED BY {x = y, 10} S//a->y PUBLISH pairs; FROM S//a->x[. = "0"] PUBLISH zeros'
    CONFIGURATION = """
[sinks]
lines = {kind = "jsonl", path = "lines.jsonl", queries = ["pairs"]}
tables = {kind = "parquet", path = "tables", rows = 3, every = "EVERY"}
feed = {kind = "atom", path = "feed", url = "https://example.org/"}
program = {kind = "command", command = ["sh", "-c", "cat >> got.json"], wait = "2us", most = 4}
hook = {kind = "webhook", url = "URL", allow_private = true, wait = "2us", most = 3}
post = {kind = "mail", server = "MAIL", starttls = false, to = "a@example.org", every = "1us", queries = ["z*"]}
"""
    seams: ClassVar = [
        *(f"{kind}Receiver.send" for kind in ("Command", "Mail", "Webhook")),
        *(f"SinkManager.{name}" for name in ("save", "noted", "committed")),
        *(f"GrowingFile.{name}" for name in ("prepare", "write")),
        *("ParquetSink.prepare", "ParquetSink.write", "ParquetFile.finish", "AtomSink.write_matches", "AtomSink._put"),
        *("files.sync_directory", "Path.rename", "os.fsync", "DuckDBEngine.commit"),
    ]
    last = 2

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, seed)
        (path / "queries.xscl").write_text(self.QUERIES)
        self.stack = ExitStack()
        self.mails = self.stack.enter_context(mail_server())
        self.hooks = self.stack.enter_context(hook_server())

    def step(self, kill: tuple[str, int] | None) -> None:
        self.come(self.rng.randint(1, 5))
        every = "1us" if kill is None else self.rng.choice(["1h", "1us"])  # in the end, what is open is closed
        given = {"MAIL": f"smtp://127.0.0.1:{self.mails.port}", "URL": self.hooks.url("/hook"), "EVERY": every}
        text = re.sub("|".join(given), lambda found: given[found[0]], self.CONFIGURATION)
        (self.path / "mmqjp.toml").write_text(text)
        options = ["--source", "drops", "--queries", "queries.xscl", "--state", "state", "--output", "out.jsonl"]
        size = ["--batch-size", self.rng.choice([1, 3, 100]), "--lateness", "INF", "--max-ahead", "INF"]
        with chdir(self.path):
            self.run(kill, command_without_least, *STREAM, *options, *size)

    def wrong(self) -> Iterator[str]:
        self.stack.close()
        kept = {row["seq"]: row["query"] for row in self.kept()}
        pairs, zeros = ([seq for seq, query in kept.items() if query == name] for name in ("pairs", "zeros"))
        lines = [json.loads(line)["seq"] for line in (self.path / "lines.jsonl").read_text().splitlines()]
        rows = chain.from_iterable(map(seqs_of, (self.path / "tables").glob("*.parquet")))
        feeds = "".join(path.read_text() for path in (self.path / "feed").glob("*.atom"))
        entries = {int(seq) for seq in re.findall(r"<!-- (\d+) ", feeds)}  # the newest are in an archive, too
        yield from differences("jsonl", lines, pairs)
        yield from differences("parquet", rows, [*kept])
        yield from differences("atom", entries, [*kept])
        yield from differences("command", covered((self.path / "got.json").read_text().splitlines()), [*kept])
        yield from differences("webhook", covered(request.body for request in self.hooks.taken()), [*kept])
        yield from differences("mail", self.mailed({*zeros}), zeros)
        yield from (f"left: {path}" for path in self.path.rglob(".*draft*"))

    def mailed(self, zeros: set[int]) -> Iterator[int]:
        """The numbers that mails cover, of equal mails once. Two with the same id must be the same."""
        mails: dict[str, bytes] = {}
        for _, _, content in self.mails.mails:
            id = str(message_from_bytes(content)["Message-ID"])
            assert mails.setdefault(id, content) == content, id
        for id in mails:
            found = re.fullmatch(r"<post\.(\d+)-(\d+)\.msg_\w+@example\.org>", id)
            assert found is not None, id
            yield from (seq for seq in range(int(found[1]), int(found[2]) + 1) if seq in zeros)


def covered(messages: Iterable[str | bytes]) -> Iterator[int]:
    """The numbers that messages to a sink that wants all cover, of equal messages once."""
    for message in map(json.loads, dict.fromkeys(messages)):
        shown = [output["seq"] for output in message["outputs"]]
        yield from (*shown, *range(shown[-1] + 1, shown[-1] + 1 + message["more"]))


def seqs_of(path: Path) -> list[int]:
    """The numbers in a Parquet file. Its name says the first and the last."""
    seqs = [int(seq) for seq in pq.read_table(path, columns=["seq"])["seq"].to_pylist()]
    assert path.name == f"{seqs[0]:012d}-{seqs[-1]:012d}.parquet"
    return seqs


def serve(path: Path) -> None:
    place = Directory(path)
    with Session("duckdb", state=place.state, lateness=20_000_000) as engine:
        place.service(engine, batch_size=3).run(None, StopAfter(10**9))


class Commands(Life):
    """Services that are given queries by other processes, and documents that cannot be read."""

    QUERIES = (
        {"text": PAIRS, "add": False, "backfill": True},
        {"text": "S/a->x JOIN {x = y, 5} S/a->y JOIN {y = z, 5} S/a->z PUBLISH chain", "add": True, "backfill": True},
        {"text": "pairs/match->m PUBLISH readers", "add": True, "backfill": False},
    )
    seams: ClassVar = [
        f"DuckDBEngine.{name}" for name in ["begin", "append", "join", "extend", "evict", "commit", "close"]
    ]
    seams += ["GrowingFile.write", "GrowingFile.__init__", "Spool.answer", "CommandQueue.apply", "Service._process"]
    seams += ["Service._commit_settings", "Session.process", "os.fsync", "Path.replace", "Path.unlink"]

    def step(self, kill: tuple[str, int] | None) -> None:
        self.prepare(self.path)
        self.run(kill, serve, self.path)

    def prepare(self, path: Path, step: int | None = None) -> None:
        """What is new before a service: a file, one that cannot be read, and before the first one the queries."""
        place, number = Directory(path), self.steps if step is None else step
        place.drop(f"{number}.jsonl", range(number * 7, number * 7 + 7))
        (place.drops / f"{number}.xml").write_text("<broken>")
        for query in self.QUERIES if number == 0 else ():
            place.ask("subscribe", **query)

    def wrong(self) -> Iterator[str]:
        calm = self.path / "calm"
        for step in range(self.steps):
            self.prepare(calm, step)
            serve(calm)
        (lines, kept, names, dead), undisturbed = self.outcome(self.path), self.outcome(calm)
        assert names == ["chain", "pairs", "readers"] and dead == self.steps and len(kept) > 50
        yield from differences("lines", lines.elements(), kept.elements())
        if undisturbed != (lines, kept, names, dead):
            yield "another outcome than of services that are not killed"

    def outcome(self, path: Path) -> tuple[Counter[str], Counter[str], list[str], int]:
        place = Directory(path)
        lines = Counter(place.output.read_text().splitlines())
        with Session("duckdb", state=place.state) as engine:
            kept = Counter(json.dumps(output.to_dict(), ensure_ascii=False) for output in engine.outputs())
            names = sorted(s.name for s in engine.registry.subscriptions.values())
            return lines, kept, names, len(list(engine.dead_letters()))


class Crawls(Life):
    """Services over a crawl that grows, with queries over visits of feeds."""

    QUERIES = (
        "FROM mmqjp:visits//visit PUBLISH visits; FROM S//item PUBLISH items;"
        "FROM mmqjp:visits//visit->v[./withdrawn->w] JOIN {w = g, INF} S//item->i[./guid->g] PUBLISH withdrawn"
    )
    seams: ClassVar = [f"DuckDBEngine.{name}" for name in ("begin", "append", "commit", "close")]
    seams += ["Session.process", "CommitMark.note", *4 * ("History._news", "History.changed")]

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, seed)
        self.crawled = path / "crawled"
        crawl(self.rng, self.crawled)
        (path / "queries.xscl").write_text(self.QUERIES)

    def step(self, kill: tuple[str, int] | None) -> None:
        moments = sorted(path.stem for path in self.crawled.rglob("*.*"))
        end = self.rng.randint(1, 9) if kill else len(moments)
        for path in [path for path in self.crawled.rglob("*.*") if path.stem in moments[:end]]:
            place = self.drops / path.relative_to(self.crawled)
            if path.is_file():
                place.parent.mkdir(exist_ok=True)
                path.rename(place)
        self.run(kill, command, *self.arguments(self.path), "--batch-size", self.rng.choice([1, 3, 100]))

    def arguments(self, path: Path) -> list[object]:
        given = ["--source", self.drops, "--feeds", "--queries", self.path / "queries.xscl", "--lateness", "INF"]
        return [*STREAM, *given, "--state", path / "state", "--max-ahead", "INF", "--output", path / "out.jsonl"]

    def wrong(self) -> Iterator[str]:
        calm = self.path / "calm"
        calm.mkdir()
        nursery.run(command, *self.arguments(calm))
        kept, wanted = ([self.told(line) for line in (of / "out.jsonl").open()] for of in (self.path, calm))
        yield from differences("lines", kept, wanted)
        yield from differences("kept", kept, [self.told(json.dumps(row)) for row in self.kept()])
        assert any(query == "visits" for query, *_ in kept)

    def told(self, line: str) -> tuple[object, ...]:
        row = json.loads(line)
        return row["query"], *row["documents"], row["t1"], row["xml"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1, 60))
@pytest.mark.parametrize("kind", [Lines, Sinks, Commands, Crawls])
def test_each_output_arrives_whatever_is_killed(kind: type[Life], seed: int, tmp_path: Path) -> None:
    life = kind(tmp_path, seed)
    life.play()
    assert [*life.wrong()] == [], life.trail
    assert life.kept() or seed
