"""The spool of a state directory: commands for whoever holds the store, and the answers, each file there whole or not.

A command is a file in `spool/commands`, its name beginning with the time, so that they are done in the order in which
they came; the answer is a file of the same name in `spool/answers`. Both appear by a rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from common.private import make_inside, make_state
from common.whole_file import write_whole as _write
from feeds.document import Clock, now_us

SPOOL, COMMANDS, ANSWERS = "spool", "commands", "answers"


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be done, with its arguments. The id is its own for ever."""

    id: str
    do: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a command: its result, or the error in a line."""

    result: Any = None
    error: str | None = None

    def to_json(self) -> str:
        return json.dumps({"result": self.result, "error": self.error}, ensure_ascii=False, default=_plain)

    @staticmethod
    def from_json(text: str) -> Answer:
        found = json.loads(text)
        return Answer(found["result"], found["error"])


class Spool:
    """The files of a state directory's spool."""

    def __init__(self, state: Path, now: Clock = now_us) -> None:
        # Not right below the directory: there a store of Spark has a folder for each table, and clears it.
        self._commands, self._answers, self._now = state / SPOOL / COMMANDS, state / SPOOL / ANSWERS, now
        self._state = state

    def submit(self, do: str, arguments: Mapping[str, Any]) -> Command:
        """Hands in a command. Raises OSError where the directory cannot be written."""
        command = Command(f"{self._now():019d}-{uuid4().hex}", do, arguments)
        self._write(self._commands / f"{command.id}.json", json.dumps({"do": do, "arguments": dict(arguments)}))
        return command

    def withdraw(self, command: Command) -> None:
        """Takes a command back that nobody waits for any longer, if it is still there."""
        (self._commands / f"{command.id}.json").unlink(missing_ok=True)

    def waiting(self) -> list[Command]:
        """The commands that wait, oldest first. What is none is answered with an error."""
        found = []
        for path in self._paths():
            try:
                found.append(_command(path))
            except FileNotFoundError:
                continue  # withdrawn meanwhile
            except (ValueError, KeyError, TypeError) as error:
                self.answer(Command(path.stem, "", {}), Answer(error=f"{path} is no command: {error}"))
        return found

    def asked(self, do: str) -> list[Command]:
        """The commands of one kind that wait, oldest first."""
        found = []
        for path in self._paths():
            with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # withdrawn, or no command
                found.append(_command(path))
        return [command for command in found if command.do == do]

    def is_empty(self) -> bool:
        """Whether no command waits."""
        return not self._paths()

    def _paths(self) -> list[Path]:
        try:
            names = sorted(entry.name for entry in os.scandir(self._commands) if entry.name.endswith(".json"))
        except FileNotFoundError:
            return []
        return [self._commands / name for name in names]

    def answer(self, command: Command, answer: Answer) -> None:
        """Leaves an answer for whoever asked; the command is done."""
        self._write(self._answers / f"{command.id}.json", answer.to_json())
        self.withdraw(command)

    def take_answer(self, command: Command) -> Answer | None:
        """The answer to a command, which is then removed; None while there is none. What is none is an error."""
        path = self._answers / f"{command.id}.json"
        try:
            answer = Answer.from_json(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            answer = Answer(error=f"{path} is no answer: {error}; what was asked for may be done: look with mmqjp list")
        path.unlink(missing_ok=True)
        return answer

    def _write(self, path: Path, text: str) -> None:
        make_state(self._state)
        make_inside(self._state, SPOOL, path.parent.name)
        _write(path, text)

    def sweep(self, before: int) -> None:
        """Removes answers that nobody fetched, to commands handed in before a time, and drafts of killed processes."""
        for directory in (self._commands, self._answers):
            for path in directory.glob("*") if directory.is_dir() else ():
                time = path.name.lstrip(".").partition("-")[0]
                stale = time.isdecimal() and int(time) < before
                if stale and (directory == self._answers or path.name.startswith(".")):
                    path.unlink(missing_ok=True)


def _command(path: Path) -> Command:
    content = json.loads(path.read_bytes())
    return Command(path.stem, str(content["do"]), dict(content["arguments"]))


def _plain(value: object) -> str:
    """What JSON has no form for: bytes as text, anything else as it prints itself."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
