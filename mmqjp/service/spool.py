"""The spool of a state directory: commands for the process that holds the store, and their results. A command is a file
in `spool/commands` named by time, so that commands run in order of submission; its result is a file of the same name in
`spool/answers`. Files are renamed into place, so they are always complete. The first line of a command is JSON; bytes
may follow. Pushed documents are commands in a directory of their own, `spool/pushes`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from common.errors import InputError
from common.files import make_inside, make_state
from common.files import write_whole as _write
from feeds.documents import Now, now_us

SPOOL, COMMANDS, ANSWERS, PUSHES = "spool", "commands", "answers", "pushes"


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its arguments, and bytes of somebody else. The id is globally unique."""

    id: str
    do: str
    arguments: Mapping[str, Any]
    body: bytes = field(default=b"", repr=False)


SendCommand = Callable[[str, Mapping[str, Any]], Any]
"""Submits a command and returns its result. Raises InputError if it is refused, StoreError, OSError."""


class BadCommand(InputError, ValueError):
    """A command is unknown, or an argument is missing or unusable."""


def argument(arguments: Mapping[str, Any], name: str, kind: type) -> Any:
    """Raises BadCommand if it is missing or of another kind."""
    if not isinstance(found := arguments.get(name), kind):
        raise BadCommand(f"the command lacks its {name}")
    return found


def text_argument(arguments: Mapping[str, Any], name: str) -> str:
    return str(argument(arguments, name, str))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command as JSON, or its error in one line."""

    result: Any = None
    error: str | None = None

    def to_json(self) -> str:
        def as_text(value: object) -> str:
            return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

        return json.dumps({"result": self.result, "error": self.error}, ensure_ascii=False, default=as_text)

    @staticmethod
    def from_json(text: str) -> CommandResult:
        found = json.loads(text)
        return CommandResult(found["result"], found["error"])


class Spool:
    def __init__(self, state: Path, now: Now = now_us, commands: str = COMMANDS) -> None:
        """`commands` names the directory of the commands. Only those in COMMANDS survive a power failure."""
        # Not directly in the state directory: a Spark store has its tables there, and removes folders it does not know.
        self._commands, self._answers, self._now = state / SPOOL / commands, state / SPOOL / ANSWERS, now
        self._state = state

    def directory(self) -> Path:
        """Creates and returns the directory of commands. Raises OSError."""
        make_state(self._state)
        return make_inside(self._state, SPOOL, self._commands.name)

    def submit(self, do: str, arguments: Mapping[str, Any], body: bytes = b"") -> Command:
        """Raises OSError if the directory is not writable."""
        command = Command(f"{self._now():019d}-{uuid4().hex}", do, arguments, body)
        line = json.dumps({"do": do, "arguments": dict(arguments)}).encode()
        self._write(self._commands / f"{command.id}.json", line + b"\n" + body if body else line)
        return command

    def withdraw(self, command: Command) -> None:
        (self._commands / f"{command.id}.json").unlink(missing_ok=True)

    def waiting(self, *kinds: str) -> list[Command]:
        """Returns waiting commands, oldest first, of some kinds. Who asks for all answers other files with errors."""
        return [command for command in self.read(answers=not kinds) if not kinds or command.do in kinds]

    def read(self, *, answers: bool = True) -> Iterator[Command]:
        """Reads the waiting commands, oldest first, one by one. With `answers`, answers other files with errors."""
        for path in self._paths():
            with suppress(FileNotFoundError):  # withdrawn in the meantime
                try:
                    line, _, body = path.read_bytes().partition(b"\n")
                    content = json.loads(line)
                    command = Command(path.stem, str(content["do"]), dict(content["arguments"]), body)
                except (ValueError, KeyError, TypeError) as error:
                    if answers:
                        wrong = CommandResult(error=f"{path} is not a command: {error}")
                        self.answer(Command(path.stem, "", {}), wrong)
                    continue
                yield command

    def size(self) -> tuple[int, int]:
        """Returns the number of waiting commands, and their bytes."""
        sizes = []
        for path in self._paths():
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return len(sizes), sum(sizes)

    def is_waiting(self, id: str) -> bool:
        """Whether a command waits. Reliable, unlike a listing, which may miss a file while another is removed."""
        return (self._commands / f"{id}.json").exists()

    def is_empty(self) -> bool:
        return not self._paths()

    def _paths(self) -> list[Path]:
        try:
            names = sorted(entry.name for entry in os.scandir(self._commands) if is_command(entry.name))
        except FileNotFoundError:
            return []
        return [self._commands / name for name in names]

    def answer(self, command: Command, result: CommandResult) -> None:
        self._write(self._answers / f"{command.id}.json", result.to_json())
        self.withdraw(command)

    def has_result(self, command: Command) -> bool:
        return (self._answers / f"{command.id}.json").exists()

    def take_result(self, command: Command) -> CommandResult | None:
        """Removes and returns a result. None if there is none yet; a damaged file is an error result."""
        path = self._answers / f"{command.id}.json"
        try:
            result = CommandResult.from_json(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            message = f"{path} is damaged: {error}; the command may have run: check with mmqjp list"
            result = CommandResult(error=message)
        path.unlink(missing_ok=True)
        return result

    def _write(self, path: Path, text: str | bytes) -> None:
        make_state(self._state)
        make_inside(self._state, SPOOL, path.parent.name)
        _write(path, text, synced=self._commands.name == COMMANDS)

    def sweep(self, before: int) -> None:
        """Removes unfetched results and temporary files of killed processes, if submitted before a time."""
        for directory in (self._commands, self._answers):
            for path in directory.glob("*") if directory.is_dir() else ():
                time = path.name.lstrip(".").partition("-")[0]
                stale = time.isdecimal() and int(time) < before
                if stale and (directory == self._answers or path.name.startswith(".")):
                    path.unlink(missing_ok=True)


def is_command(name: str) -> bool:
    return name.endswith(".json")
