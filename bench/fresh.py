"""Runs work in a fresh process, so that no measurement depends on those before it."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from traceback import format_exc
from typing import TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


def in_fresh_process(work: Callable[[Item], T], item: Item) -> T:
    """Returns `work(item)`, computed in a new process. `work` is a function of a module. Its errors are raised here.

    The process is spawned: a forked one would start with the heap of this one. A `ProcessPoolExecutor` is not used,
    because it may wait for ever after Ctrl-C.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, work, item), daemon=True)
    process.start()
    sender.close()  # The process has the only one now: if it dies, there is nothing more to wait for.
    found: T
    try:
        found, error = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process of {item} ended with status {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if error is not None:
        raise error
    return found


def _send(sender: Connection, work: Callable[[Item], T], item: Item) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's, which ends this one.
    try:
        outcome = work(item), None
    except Exception as error:
        sender.send((None, _portable(error, f"It was raised in a process of its own:\n{format_exc()}")))
    else:
        sender.send(outcome)


def _portable(error: Exception, note: str) -> Exception:
    """The error with a note, or one with its text if it cannot be sent: those of Py4J hold connections."""
    error.add_note(note)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its parts raise
        return RuntimeError(note)
    return error
