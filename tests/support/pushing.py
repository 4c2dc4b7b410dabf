"""A service that delivers to sinks, as a process that is killed and started again, with its files."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmqjp.engine import Session
from tests.processes import nursery
from tests.processes.nursery import Program
from tests.processes.programs import hurried
from tests.support.cli import mmqjp

PATIENCE = 60.0
"""Seconds after which a test gives up waiting."""

SECRET = "c2VjcmV0IHRoYXQgbm9ib2R5IG1heSBzZWU="
"""What signs messages, in the form that Standard Webhooks give it."""

QUERIES = "FROM S//a->x PUBLISH every; FROM S//a->x[. = '1'] PUBLISH odd"


class Pushing:
    """A directory with the configuration, the documents and the state of a service. `speed` is that of its clock."""

    def __init__(self, path: Path, speed: int = 1) -> None:
        self.path, self.speed = path, speed
        self.state, self.config = path / "state", path / "sinks.toml"
        self.log, self.lines = path / "log.jsonl", path / "lines.jsonl"
        self.processes: list[Program] = []
        self.dropped = 0
        (path / "drops").mkdir()
        (path / "queries.xscl").write_text(QUERIES)
        key = path / "hook.key"
        key.write_text(SECRET)
        key.chmod(0o600)
        self.configure("")

    def configure(self, sinks: str) -> None:
        """Writes the configuration: sinks that may use the secret `hook`."""
        self.config.write_text(f'[secrets]\nhook = {{ file = "hook.key" }}\n{sinks}')

    def drop(self, count: int) -> None:
        """Lets documents come, of which each second one is for both queries."""
        numbers = range(self.dropped, self.dropped + count)
        self.dropped += count
        rows = ({"id": f"d{n}", "time": 1_780_000_000_000_000 + n, "xml": f"<a>{n % 2}</a>"} for n in numbers)
        file = self.path / "drops" / f"{numbers.start:06}.jsonl"
        file.with_suffix(".tmp").write_text("".join(json.dumps(row) + "\n" for row in rows))
        file.with_suffix(".tmp").rename(file)

    def start(self, *options: object) -> Program:
        arguments = ["--config", self.config, "stream"]
        arguments += ["--engine", "duckdb", "--source", self.path / "drops", "--state", self.state]
        arguments += ["--queries", self.path / "queries.xscl", "--output", self.lines, "--log", "json"]
        arguments += ["--lateness", "INF", "--idle-after", "INF", "--max-ahead", "INF", "--batch-size", "5", *options]
        with self.log.open("ab") as log:
            self.processes.append(nursery.start(hurried, self.speed, *arguments, err=log))
        return self.processes[-1]

    def stop(self) -> None:
        process = self.processes[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, self.log.read_text()

    def wait_for(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            with suppress(TimeoutError):
                raise AssertionError(f"it ended with status {self.processes[-1].wait(0.05)}: {self.log.read_text()}")

    def wait_for_kill(self) -> None:
        assert self.processes[-1].wait(PATIENCE) == -signal.SIGKILL, self.log.read_text()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def command(self, *arguments: object) -> str:
        done = mmqjp("--config", self.config, *map(str, arguments), "--state", self.state)
        assert done.exit_code == 0, done.output
        return done.stdout

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of a name in the log. A line that is being written is left out."""
        text = self.log.read_text() if self.log.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [event for line in whole if line.startswith("{") and (event := json.loads(line))["event"] == name]

    def committed(self, query: str = "%") -> list[str]:
        """The ids of the outputs in the store, in order. The service must have ended."""
        return [row["id"] for row in self.rows(f"SELECT id FROM outputs WHERE query LIKE '{query}' ORDER BY seq")]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with Session("duckdb", state=self.state) as engine:
            found: list[dict[str, Any]] = engine.sql(sql, trusted=True).to_pylist()
            return found

    def files_with(self, secret: str) -> list[str]:
        forms = {secret.encode(), secret.encode().hex().encode(), secret.encode("utf-16-le")}
        paths = [self.log, *(Path(found) / name for found, _, names in os.walk(self.state) for name in names)]
        return [str(path) for path in paths if any(form in path.read_bytes() for form in forms)]


def first_times(ids: list[str]) -> list[str]:
    return list(dict.fromkeys(ids))
