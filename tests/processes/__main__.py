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
from selectors import EVENT_READ, DefaultSelector
from typing import NoReturn

from mmqjp.cli import main
from mmqjp.process import without_pandas
from templates.catalog import Catalog
from tests.processes.kills import kill_at
from tests.processes.nursery import SIZE, Order
from tests.support.conjuncts import conjuncts_of
from xscl.parser import parse_script


def serve() -> None:
    orders = socket.socket(fileno=os.dup(0))
    _warm()
    with DefaultSelector() as events:
        events.register(orders, EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.data is not None:
                    events.unregister(key.fd)
                    _report(key.fd, *key.data)
                elif (started := _next(orders)) is None:
                    return
                else:
                    events.register(os.pidfd_open(started[0]), EVENT_READ, started)


def _next(orders: socket.socket) -> tuple[int, socket.socket] | None:
    """Starts the next program that is ordered. Returns its number and the socket for its status."""
    size, files, _, _ = socket.recv_fds(orders, SIZE, 4)
    if not size:
        return None
    order: Order = pickle.loads(orders.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    for argument in {*map(str, order.arguments)} & {*main.commands}:
        main.commands[argument].get_short_help_str()
    child = os.fork()
    if not child:
        _become(order, files[1:])
    for file in files[1:]:
        os.close(file)
    told = socket.socket(fileno=files[0])
    _tell(told, child)
    return child, told


def _report(handle: int, child: int, told: socket.socket) -> None:
    os.close(handle)
    with told:
        _tell(told, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _tell(told: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody may wait for it
        told.sendall(number.to_bytes(SIZE, "big", signed=True))


def _warm() -> None:
    without_pandas()
    for number, query in enumerate(conjuncts_of(parse_script("S//a->x JOIN {x = y, 1} S//b->y"))):
        Catalog().add(query, number, True)


def _become(order: Order, files: list[int]) -> NoReturn:
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
