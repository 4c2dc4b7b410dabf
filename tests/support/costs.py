"""A plugin of pytest that says at the end what tests cost: processor time with all processes that they start.

    .venv/bin/python -m pytest -p tests.support.costs [-n 2 --dist loadgroup] ...

Processor time does not depend on what else runs, so a slow test is known as one on a busy machine too. Linux only.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator
from operator import itemgetter
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

NAME = "processor seconds"
SHOWN = 40
"""So many of the dearest files, and of the dearest tests, are shown."""

TICK = os.sysconf("SC_CLK_TCK")


class Costs:
    """In a worker: measures each test. In the main process: sums up what reports say."""

    def __init__(self) -> None:
        self.tests = defaultdict[str, float](float)
        self.last = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now = spent()
            report.user_properties.append((NAME, now - self.last))
            self.last = spent()  # what measuring costs is nobody's
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.tests[report.nodeid] += sum(
                float(str(value)) for name, value in report.user_properties if name == NAME
            )

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        folders, files = defaultdict[str, float](float), defaultdict[str, float](float)
        for nodeid, seconds in self.tests.items():
            path = Path(nodeid.split("::")[0])
            folders[str(path.parent)] += seconds
            files[str(path)] += seconds
        for costs, most in ((folders, None), (files, SHOWN), (self.tests, SHOWN)):
            terminalreporter.section(f"{NAME}: {sum(costs.values()):.0f} in all")
            for name, seconds in sorted(costs.items(), key=itemgetter(1), reverse=True)[:most]:
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
    config.pluginmanager.register(Costs())
