"""`mmqjp backup` and `mmqjp restore`: copy a whole state directory, even while a service runs, and put a copy in place.

A backup is a directory: the files of the state in `files`, and the manifest `backup.json` with their digests. Both it
and a restored state get their final names once complete. The store is copied as of one commit, after its inputs (feeds
and fetched files) and before its outputs (files of sinks), so that whatever arrives in between is read or written
exactly once. Postings derive from the tables: they are omitted, and rebuilt."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import click

from common.errors import OperationalError
from common.files import SECRETS, SHARED, lock, sync_directory, sync_file, umask_of, write_whole
from feeds.documents import now_us
from feeds.fetch.state import DIRECTORY, STATE_FILE
from join_stage.plans import DEFAULT_PLAN
from join_stage.protocol import FLAT_STORE
from join_stage.store.protocol import COMMITTED, DUCKDB_FILE, RUNS, SPARK_MANIFESTS
from join_stage.views import CACHE_BYTES
from mmqjp.answers.fan_out import SINK_PREFIX
from mmqjp.commands.check_store import QUARANTINE, Repairs, apply
from mmqjp.commands.command_line import debug_option
from mmqjp.commands.formats import open_engine
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.commands.options import state_option
from mmqjp.process import pluralise
from mmqjp.service.commands import LIVE, SAVE_SINKS, NoAnswer
from mmqjp.service.spool import SPOOL, Spool
from mmqjp.service.sql_question import HOLD
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.state.engine_choice import DUCKDB, OWNER_FILE, InUse, ReadLock, open_store, stored_engine
from mmqjp.tables.schema import SCHEMA, CommitMetadata, Ledger

MANIFEST, FILES = "backup.json", "files"
FORMAT = 1
TRIES = 10  # attempts to copy the files of a store if they change meanwhile
CHUNK = 1 << 20  # bytes read at a time

NOT_COPIED = frozenset((OWNER_FILE, SPOOL, QUARANTINE, RUNS, COMMITTED, DUCKDB_FILE, SPARK_MANIFESTS))
"""Files not backed up, or copied with the store: the lock, unanswered commands, quarantined files, postings."""

SQLITE = ".sqlite"
CHECKPOINT = "checkpoint"  # the directory of Spark's streaming queries
FEEDING, LAST = range(3), 3
"""Stages of copying before the store (pending changes of feeds; the state of fetching and of streaming queries; other
files), and the one after it (files of sinks)."""


class BackupError(OperationalError, RuntimeError):
    """A backup cannot be made or restored."""


@dataclass(frozen=True, slots=True)
class CopiedFile:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The content of a backup. `state` was the absolute path of the state; `files` are keyed by their paths in it."""

    format: int
    mmqjp: str
    engine: str
    state: str
    made_at: int
    secrets: bool
    files: Mapping[str, CopiedFile]

    def to_text(self) -> str:
        content = asdict(self)
        return json.dumps({**content, "digest": _digest(content)}, indent=1) + "\n"


def _digest(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_backup(backup: Path) -> BackupManifest:
    """Returns the manifest of a backup. Raises BackupError."""
    path = backup / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        if content["format"] > FORMAT:
            raise BackupError(f"{backup} was made by mmqjp {content['mmqjp']}: install that version, or a newer one")
        if content.pop("digest") != _digest(content):
            raise BackupError(f"{path} is damaged: use another backup")
        files = {str(PurePosixPath(name)): CopiedFile(**file) for name, file in content.pop("files").items()}
        found = BackupManifest(**content, files=files)
    except OSError as error:
        raise BackupError(f"{backup} is not a backup: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"{path} is not a manifest of a backup: it is damaged, or from another program") from error
    if wrong := [name for name in files if name.startswith("/") or ".." in PurePosixPath(name).parts]:
        raise BackupError(f"{path} lists {wrong[0]!r:.80}, which cannot be in a state")
    return found


def copy_file(source: Path, target: Path, most: int | None = None) -> CopiedFile:
    """Copies a file, or its first `most` bytes, durably. Raises OSError."""
    digest, size = sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("wb") as written:
        while some := read.read(CHUNK if most is None else min(CHUNK, most - size)):
            written.write(some)
            digest.update(some)
            size += len(some)
        written.flush()
        sync_file(written.fileno())
    return CopiedFile(size, digest.hexdigest())


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """A directory that gets its final name when the block ends without error, unless a non-empty one has that name.
    Removes leftovers of a killed process. Raises BackupError, OSError."""
    draft = target.with_name(f".{target.name}.draft")
    _refuse_occupied(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        draft.mkdir(0o700)
    handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not lock(handle):
            raise BackupError(f"another process is writing {target}: wait for it, or end it")
        for path in list(draft.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield draft
            for directory, _, _ in os.walk(draft):
                sync_directory(Path(directory))
            _refuse_occupied(target)
            _rename(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_directory(target.parent)
    finally:
        os.close(handle)


def _refuse_occupied(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(f"{target} exists and is not empty: name another directory, or move it away")


def _rename(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError as error:  # for example, a mount point
        advice = "name a directory that does not exist yet"
        raise BackupError(f"{target} cannot be put in place ({error.strerror}): {advice}") from error


# ------------------------------------------------------------ backup


class _Copying:
    """Copies a state into a draft; `files` are those copied so far."""

    def __init__(self, state: Path, draft: Path, *, secrets: bool) -> None:
        self._state, self._target, self._engine = state, draft / FILES, stored_engine(state)
        self._left_out = NOT_COPIED if secrets else {*NOT_COPIED, SECRETS}
        if self._engine != DUCKDB:
            schema = FLAT_STORE | SCHEMA
            self._left_out = {*self._left_out, *map(schema.folder, schema.tables)}
        self._target.mkdir()
        self.files: dict[str, CopiedFile] = {}

    def copy_all(self) -> None:
        for stage in FEEDING:
            self._copy_beside(stage)
        self._copy_store()
        self._copy_beside(LAST)

    def copy(self, name: str, most: int | None = None) -> None:
        self.files[name] = copy_file(self._state / name, self._target / name, most)

    def _copy_beside(self, stage: int) -> None:
        """Copies files beside the store. Those that vanish meanwhile were read: the store has their content."""
        for name in sorted(self._beside(stage)):
            with suppress(FileNotFoundError):
                (self._copy_database if name.endswith(SQLITE) else self.copy)(name)

    def _beside(self, stage: int) -> Iterator[str]:
        for directory, folders, names in os.walk(self._state, followlinks=True):
            folder = Path(directory).relative_to(self._state)
            if not folder.parts:
                kept = [name for name in (*folders, *names) if name not in self._left_out]
                kept = [name for name in kept if not name.startswith(f"{DUCKDB_FILE}.")]  # its log and temporary files
                folders[:], names = (list(filter(kept.__contains__, some)) for some in (folders, names))
            for name in names:
                # A file whose name begins with a dot is being written. SQLite's side files belong to a process.
                is_ours = not name.startswith(".") and (name.endswith(SQLITE) or SQLITE not in name)
                if is_ours and _stage(folder, name) == stage and (self._state / folder / name).is_file():
                    yield (folder / name).as_posix()

    def _copy_database(self, name: str) -> None:
        draft = self._target / f"{name}.draft"
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                closing(sqlite3.connect(f"{(self._state / name).absolute().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(draft)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            raise BackupError(f"{self._state / name} cannot be read: {error}") from error
        self.files[name] = copy_file(draft, self._target / name)
        draft.unlink()

    def _copy_store(self) -> None:
        from join_stage.store import duckdb
        from join_stage.store.spark import manifests

        copy_files = duckdb.copy_files if self._engine == DUCKDB else manifests.copy_files
        for _ in range(TRIES):
            if copy_files(self._state, self._target, self.copy):
                return
            for name in [name for name in self.files if name.startswith(DUCKDB_FILE)]:
                del self.files[name]
                (self._target / name).unlink()
        raise BackupError(f"the store in {self._state} changes faster than it can be copied: try again later")


def _stage(folder: Path, name: str) -> int:
    if DIRECTORY.format(STATE_FILE) in folder.parts:
        return 0
    if name == STATE_FILE or CHECKPOINT in folder.parts[:1]:
        return 1
    return LAST if LIVE in folder.parts[:1] else 2


@contextmanager
def _held(state: Path, engine: str, wait: float) -> Iterator[None]:
    """Keeps others from writing the store; a running service records sinks' positions and postpones checkpoints."""
    try:
        reading = ReadLock(state)
    except InUse:
        pass
    else:
        try:
            yield
        finally:
            reading.release()
        return
    with suppress(NoAnswer):  # it is busy: then a sink may repeat outputs since its last recorded position
        client(state, wait).ask(SAVE_SINKS, {})
    if engine != DUCKDB:
        yield  # Spark keeps replaced files for a while
        return
    spool = Spool(state)
    command = spool.submit(HOLD, {})
    try:
        yield
    finally:
        spool.withdraw(command)


def back_up(state: Path, target: Path, *, secrets: bool = True, wait: float = 30.0) -> BackupManifest:
    """Copies a state into a new or empty directory. Raises BackupError, StoreError, OSError."""
    state, target = state.resolve(), target.resolve()
    if (engine := stored_engine(state)) is None:
        raise BackupError(f"there is no store in {state}: name the state directory of one")
    if target.is_relative_to(state):
        raise BackupError(f"{target} is inside the state: name a directory elsewhere")
    with whole_directory(target) as draft, umask_of(shared=False):
        copying = _Copying(state, draft, secrets=secrets)
        with _held(state, engine, wait):
            copying.copy_all()
        made = BackupManifest(FORMAT, version("mmqjp"), engine, str(state), now_us(), secrets, copying.files)
        write_whole(draft / MANIFEST, made.to_text())
    return made


# ------------------------------------------------------------ restore


def restore_state(backup: Path, target: Path, *, paused: bool = False) -> BackupManifest:
    """Puts the state of a backup into a new or empty directory. Sinks continue where they were, or are `paused`. Raises
    BackupError, StoreError, OSError."""
    manifest, target = read_backup(backup), target.resolve()
    shared = SHARED in manifest.files
    with whole_directory(target) as draft, umask_of(shared=shared):
        for name, file in manifest.files.items():
            try:
                found = copy_file(backup / FILES / name, draft / name)
            except FileNotFoundError as error:
                raise BackupError(f"{error.filename} is missing: use another backup") from error
            if found != file:
                raise BackupError(
                    f"{backup / FILES / name} differs from the file that was backed up: use another backup"
                )
            if name.startswith(f"{SECRETS}/"):
                (draft / name).chmod(0o600)
        apply(draft, Repairs(postings=True))
        _move_sinks(draft, manifest, target, paused=paused)
        if shared:
            draft.chmod(0o777 & ~_umask())
    return manifest


def _umask() -> int:
    os.umask(found := os.umask(0))
    return found


def _move_sinks(draft: Path, manifest: BackupManifest, target: Path, *, paused: bool) -> None:
    """Updates the paths of sinks' files. Files outside the state may still belong to the original, so their inodes are
    dropped and they are found by name only."""
    with closing(open_store(None, draft, DEFAULT_PLAN, CACHE_BYTES, read_only=True)) as reader:
        known = Ledger(reader).settings(SINK_PREFIX)  # refuses a store written by a newer version
        noted = {name: json.loads(position) for name, position in known.items() if position}
    changed = dict[str, str]()
    for name, position in noted.items():
        moved = _moved(position, f"{manifest.state}/", f"{target}/")
        if paused and name != OUTPUT_SINK:
            moved["state"] = "paused"
        if moved != position:
            changed[SINK_PREFIX + name] = json.dumps(moved, ensure_ascii=False)
    if changed:
        with open_engine(manifest.engine, draft) as engine:
            engine.commit_metadata(CommitMetadata(settings=changed))


def _moved(value: Any, before: str, after: str) -> Any:
    """Adapts the paths in a sink's position to the new state directory, and drops inodes.

    >>> _moved({"acked": 1, "details": {"file": "/a/sinks/x", "inode": 7, "bytes": 9}}, "/a/", "/b/")
    {'acked': 1, 'details': {'file': '/b/sinks/x', 'inode': None, 'bytes': 9}}
    """
    if not isinstance(value, dict):
        return after + value.removeprefix(before) if isinstance(value, str) and value.startswith(before) else value
    return {key: None if key == "inode" else _moved(one, before, after) for key, one in value.items()}


# ------------------------------------------------------------ commands


def _say(what: str, manifest: BackupManifest) -> None:
    size = sum(file.size for file in manifest.files.values())
    secrets = "" if manifest.secrets else ", without its secrets"
    click.echo(f"{what}: {pluralise(len(manifest.files), 'file')}, {size / (1 << 20):,.1f} MiB{secrets}")


@click.command()
@click.argument("target", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--no-secrets", is_flag=True, help="Leave out the state's secrets: tokens, keys and passwords.")
@store_options
def backup(target: Path, no_secrets: bool, state: Path, wait: float) -> None:
    """Copy a state directory, even while a service runs on it.

    \b
    Examples:
      mmqjp backup /backups/monday --state state/
      mmqjp backup /backups/monday --state state/ --no-secrets

    DEST is a new directory. It appears once the backup is complete.
    """
    _say(f"{target}", back_up(state, target, secrets=not no_secrets, wait=wait))


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(exists=True, file_okay=False, path_type=Path))
@state_option("Where to put the state: a new directory.", required=True)
@click.option("--paused", is_flag=True, help="Pause all sinks, for a copy beside the original.")
@debug_option
def restore(source: Path, state: Path, paused: bool) -> None:
    """Put the state of a backup in place, after verifying the digests of its files.

    \b
    Examples:
      mmqjp restore /backups/monday --state state/
      mmqjp restore /backups/monday --state trial/ --paused

    Sinks continue where they were when the backup was made.
    """
    _say(f"{state}", restore_state(source, state, paused=paused))
