"""What a service watches: its sources and its spool. Says where changes may not be told at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from feeds.tail import Tail
from mmqjp.service.log import Log
from mmqjp.service.spool import Spool, is_command
from mmqjp.service.watcher import FileWatcher, Watched

MOUNTS = Path("/proc/self/mountinfo")

REMOTE = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)
"""File systems that tell nothing of what other machines change. Those of FUSE may do so, or not: they count, too."""

_PLACE = 4
"""The number of the field with the place of a mount."""


def watch(sources: Sequence[Tail], spool: Spool, log: Log) -> FileWatcher:
    """A watcher of the sources and of the commands in the spool.

    The event `polling` names the sources where other machines may make changes that nobody tells of.
    """
    mounts = mounted_file_systems(_lines(MOUNTS))
    for source in sources:
        if (kind := file_system_of(source.path, mounts)) in REMOTE or kind.startswith("fuse."):
            reason = f"{kind} may not tell of changes that are made on other machines"
            log.event("polling", path=source.path, reason=reason)
    watched = [Watched(source.path, source.is_wanted) for source in sources]
    return FileWatcher([*watched, Watched(spool.directory(), is_command)], log)


def mounted_file_systems(lines: Iterable[str]) -> dict[Path, str]:
    r"""The kind of the file system that is mounted at each place, from the lines of `/proc/self/mountinfo`.

    >>> mounted_file_systems([r"7 1 0:3 / /my\040share rw shared:2 - nfs4 host:/x rw"])
    {PosixPath('/my share'): 'nfs4'}
    """
    found = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > _PLACE:
            place = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), fields[_PLACE])
            found[Path(place)] = after.partition(" ")[0]
    return found


def file_system_of(path: Path, mounts: dict[Path, str]) -> str:
    """The kind of the file system that a path is on; "" if it is not known."""
    resolved = path.resolve()
    return next((mounts[place] for place in (resolved, *resolved.parents) if place in mounts), "")


def _lines(path: Path) -> list[str]:
    """The lines of a file; none if it cannot be read, as on systems that have no such file."""
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
