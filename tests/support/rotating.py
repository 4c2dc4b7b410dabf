"""Writes lines to files and rotates them in every usual way, and knows what it wrote."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path


class Rotating:
    """Writes unique lines to `x.jsonl` in a directory, moves the file or copies and truncates it, and goes on writing
    to moved files. Before it loses what nobody could read afterwards, it calls `look`: before it removes a file, or
    moves an unseen file out of the source's sight. `kinds` says whether the source reads all `*.jsonl`."""

    def __init__(
        self, directory: Path, rng: random.Random, look: Callable[[], object], *, long: bool, kinds: bool = True
    ) -> None:
        self.directory, self.path = directory, directory / "x.jsonl"
        self.lines: list[str] = []
        self._rng, self._look, self._long, self._kinds = rng, look, long, kinds
        self.copies: set[Path] = set()
        self._moved: list[Path] = []
        self._number = 0

    def act(self) -> None:
        write, move, cut = self.write, self.move, self.copy_and_cut
        self._rng.choice([write, write, write, self.write_to_moved, move, cut, self.anew, self.date])()

    def write(self, path: Path | None = None) -> None:
        """Writes some lines. Every third is malformed. All begin alike; long ones fill the part of a file that
        identifies it."""
        text = ""
        for _ in range(self._rng.randint(1, 4)):
            number = len(self.lines)
            filling = "v" * self._rng.choice([0, 900 if self._long else 3])
            line = json.dumps({"xml": f"<a>{filling}</a>", "id": f"d{number}", "time": number * 1_000})
            self.lines.append(line[:-1] if number % 3 == 2 else line)
            text += self.lines[-1] + "\n"
        with (path or self.path).open("a") as file:
            file.write(text)

    def write_to_moved(self) -> None:
        """Writes to a moved file, like a program that still has it open."""
        there = [path for path in self._moved if path.exists()]
        if there:
            self.write(there[-1])

    def move(self) -> None:
        """Renames the file, to a name that the source reads or not. Files renamed earlier move up."""
        if self._kinds and self._rng.random() < 0.4:
            if self.path.exists():
                self._move(self._new_name())
        elif self.path.exists() and self.path.stat().st_size:  # an empty one has nothing to be known by
            self._look()
            self._move(self._shifted() if self._rng.random() < 0.7 else self.directory / f"old-{len(self.lines)}")

    def copy_and_cut(self) -> None:
        if self._kinds and self._rng.random() < 0.4:
            if self.path.exists():
                self._copy(self._new_name())
        elif self.path.exists():
            self._look()
            self._copy(self._shifted())

    def to_shut(self) -> list[Path]:
        """Files that may be unreadable for a while. They exclude copies, which only their content identifies."""
        return [path for path in self.directory.iterdir() if path not in self.copies and self._rng.random() < 0.3]

    def anew(self) -> None:
        """Removes the file and creates it again, often with the same inode."""
        self._look()
        self.path.unlink(missing_ok=True)
        self.write()

    def date(self) -> None:
        for path in self.directory.iterdir():
            moment = self._rng.randint(0, 2_000_000_000)
            os.utime(path, (moment, moment))

    def _copy(self, new: Path) -> None:
        self.copies.add(Path(shutil.copy(self.path, new)))
        os.truncate(self.path, 0)

    def _move(self, new: Path) -> None:
        self.path.rename(new)
        self._moved.append(new)
        if self._rng.random() < 0.5:
            self.path.touch()

    def _new_name(self) -> Path:
        self._number += 1
        return self.directory / f"x-{self._number}.jsonl"

    def _shifted(self) -> Path:
        """`x.jsonl.1`, after the file of that name has become `x.jsonl.2`, and so on."""
        last = 1
        while (self.directory / f"x.jsonl.{last}").exists():
            last += 1
        for number in range(last, 1, -1):
            old, new = (self.directory / f"x.jsonl.{n}" for n in (number - 1, number))
            old.rename(new)
            self._moved = [new if path == old else path for path in self._moved]
        return self.directory / "x.jsonl.1"
