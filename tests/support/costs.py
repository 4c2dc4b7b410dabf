"""A plugin of pytest that says at the end what tests cost: processor time with all processes that they start.

    .venv/bin/python -m pytest -p tests.support.costs [-n 2 --dist loadgroup] ...

Processor time does not depend on what else runs, so a slow test is known as one on a busy machine too. Linux only.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

NAME = "processor seconds"
SHOWN = 40
"""So many of the dearest files, and of the dearest tests, are shown."""

TICK = os.sysconf("SC_CLK_TCK")


class Costs:
    """In a worker: measures each test. In the main process: sums up what reports say."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.last = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            now = spent()
            report.user_properties.append((NAME, now - self.last))
            self.last = spent()  # what measuring costs is nobody's
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.tests[report.nodeid] += sum(value for name, value in report.user_properties if name == NAME)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        folders, files = Counter[str](), Counter[str]()
        for nodeid, seconds in self.tests.items():
            path = Path(nodeid.split("::")[0])
            folders[str(path.parent)] += seconds
            files[str(path)] += seconds
        for counter, most in ((folders, None), (files, SHOWN), (self.tests, SHOWN)):
            terminalreporter.section(f"{NAME}: {sum(counter.values()):.0f} in all")
            for name, seconds in counter.most_common(most):
                terminalreporter.line(f"{seconds:8.1f} {name}")


def spent() -> float:
    """The processor seconds of this process and of those that came of it, also of those that ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(name)] = int(fields[1])
        ticks[int(name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in ours} - ours:
        ours |= more
    others = sum(ticks[one] for one in ours if one != os.getpid())
    waited = os.times()
    return time.process_time() + waited.children_user + waited.children_system + others / TICK


def pytest_configure(config: pytest.Config) -> None:
    """Puts the plugin in place."""
    config.pluginmanager.register(Costs())
