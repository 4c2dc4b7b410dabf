"""Where the programs of tests are killed: before or after a call of a seam, or while a write is half done."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from common import files
from feeds.history import History
from join_stage import protocol
from join_stage.duckdb import DuckDBEngine
from join_stage.store.duckdb import CommitMark, DuckDBStore
from mmqjp.commands import backup
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue
from mmqjp.service.loop import Service
from mmqjp.service.spool import Spool
from mmqjp.sinks import files as files_module
from mmqjp.sinks.deliverer import OutputDelivery
from mmqjp.sinks.files import AtomSink, GrowingFile
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.parquet import ParquetFile, ParquetSink
from mmqjp.sinks.webhook import CommandReceiver, MailReceiver, WebhookReceiver
from tests.support.faults import Point, arm, kill

_CALLS: dict[Any, str] = {
    DuckDBEngine: "begin append join extend evict commit close",
    DuckDBStore: "commit",
    CommitMark: "note",
    protocol: "save_word_order",
    Session: "process ensure",
    History: "_news changed",
    Service: "_process _commit_settings",
    Spool: "answer",
    CommandQueue: "apply",
    GrowingFile: "__init__ prepare write close",
    files_module: "_cut_back",
    backup: "copy_file _rename",
    OutputDelivery: "save_position",
    SinkManager: "save noted committed",
    CommandReceiver: "send",
    MailReceiver: "send",
    WebhookReceiver: "send",
    ParquetSink: "prepare write",
    ParquetFile: "finish",
    AtomSink: "write_matches _put",
    files: "sync_directory",
    Path: "replace rename unlink",
    os: "fsync ftruncate",
}

SEAMS: dict[str, Point] = {
    f"{owner.__name__.rpartition('.')[2]}.{name}": (owner, name)
    for owner, names in _CALLS.items()
    for name in names.split()
}
"""The calls by their names, such as `DuckDBEngine.commit`."""

HALF = "amid os.write"  # when half of the bytes are written


def kill_at(moments: str, calls: int = 1) -> None:
    """Kills this process with SIGKILL at the n-th call of a seam, such as `before Session.process`, or at HALF.

    Of two moments, `after A.b, before C.d`, the second counts once the first has come.
    """
    moment, _, rest = moments.partition(", ")
    strike = partial(kill_at, rest) if rest else kill
    if moment == HALF:
        kill_amid_write(calls)
    else:
        when, seam = moment.split()
        arm(SEAMS[seam], strike, calls, after=when == "after")


def kill_amid_write(calls: int) -> None:
    write, left = os.write, calls

    def half(handle: int, data: bytes) -> int:
        nonlocal left
        left -= 1
        written = write(handle, data if left else data[: len(data) // 2])
        if not left:
            kill()
        return written

    os.write = half  # type: ignore[assignment]  # a seam for tests
