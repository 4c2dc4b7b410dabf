"""The process that forks for each program that a test starts (see `tests.processes.nursery`).

It takes orders from the socket that is its standard input, and ends when that is closed. It opens no store and has no
threads; its copies do as they like.
"""

import os
import pickle
import resource
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

from mmqjp.cli import main
from mmqjp.process import without_pandas
from templates.catalog import Catalog
from tests.processes.kills import kill_at
from tests.processes.nursery import MOST, Order
from tests.support.conjuncts import conjuncts_of
from xscl.parser import parse_script


def serve() -> None:
    orders = socket.socket(fileno=os.dup(0))
    _warm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait
    while (received := socket.recv_fds(orders, MOST, 4))[0]:
        order: Order = pickle.loads(received[0])
        for argument in {*map(str, order.arguments)} & {*main.commands}:
            main.commands[argument].get_short_help_str()
        if not os.fork():
            _run(order, *received[1])
        for file in received[1]:
            os.close(file)


def _run(order: Order, handle: int, *files: int) -> NoReturn:
    """Starts a program, waits for its end, and tells its number and then its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        _become(order, files)
    for file in files:
        os.close(file)
    with socket.socket(fileno=handle) as told, suppress(BrokenPipeError):  # nobody may wait for it
        told.send(pickle.dumps(child))
        told.send(pickle.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    os._exit(0)


def _warm() -> None:
    without_pandas()
    for number, query in enumerate(conjuncts_of(parse_script("S//a->x JOIN {x = y, 1} S//b->y"))):
        Catalog().add(query, number, True)


def _become(order: Order, files: tuple[int, ...]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)
    time.tzset()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    if order.most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order.most, order.most))
    if order.seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (order.seconds, order.seconds))
    status = 0
    try:
        if order.kill is not None:
            kill_at(*order.kill)
        order.program(*order.arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    for file in filter(None, (sys.stdout, sys.stderr)):
        file.flush()
    os._exit(status)


if __name__ == "__main__":
    serve()
