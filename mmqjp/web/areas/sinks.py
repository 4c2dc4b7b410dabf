"""The sinks of a store: destinations, backlogs, missed outputs, and how to add, test, pause and replay them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Form, Request
from fastapi.responses import HTMLResponse, Response

from common.errors import InputError
from common.tools import from_json
from mmqjp.service.commands import SINKS, add_sink, set_sink, try_sink
from mmqjp.service.spool import SendCommand
from mmqjp.sinks.positions import SinkState
from mmqjp.web.site import NO_STORE, Link, Site, segment


@dataclass(frozen=True, slots=True)
class SinkRow(SinkState):
    """A sink as in `mmqjp sinks list`, with the patterns `queries`, and its destination `to`, without secrets."""

    queries: Sequence[str]
    to: str


@dataclass(frozen=True, slots=True)
class Undelivered:
    """An output that a receiver refused, and the number of tries."""

    seq: int
    id: str
    tries: int
    reason: str
    noted_at: int


@dataclass(frozen=True, slots=True)
class MissedOutputs:
    """Outputs that were given up, by their numbers."""

    first: int
    last: int
    count: int
    reason: str
    noted_at: int


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink, its definition, with secrets by name only, its configuration `file`, and what it missed, newest first."""

    sink: SinkRow
    file: str | None
    definition: Mapping[str, Any]
    undelivered: tuple[Undelivered, ...]
    gaps: tuple[MissedOutputs, ...]


def sink_rows(ask: SendCommand) -> list[SinkRow]:
    """Raises what asking raises."""
    return list(map(SinkRow.from_dict, ask(SINKS, {})))


def sink_view(ask: SendCommand, name: str) -> SinkView:
    """Raises CommandError if there is no such sink."""
    found = ask(SINKS, {"name": name})
    return from_json(SinkView, found | {"sink": found} | ask("sinks-failed", {"name": name}))


LINKS = (Link("/sinks", "Sinks", 40),)

TEST_SECONDS = 5.0  # seconds that a page waits for a test's result

DONE = {
    "added": "It was added, and delivers what comes from now on.",
    "pause": "It is paused. It keeps its place, as far back as its backlog allows.",
    "resume": "It tries again now.",
    "replayed": "It delivers again.",
    "stays": "There is nothing to deliver again from there on. It keeps its place.",
    "tested": "The test was acknowledged.",
    "sent": "The test is under way: load this page again for its result.",
    "removed": "The sink was removed.",
}
"""The result of an action, in words."""

_FormText = Annotated[str, Form(max_length=4_000)]
_Name = Annotated[str, Body()]
_Table = Annotated[dict[str, Any], Body(description="Its keys as in the configuration file.")]
_Start = Annotated[str, Body(embed=True, description='"start", the number of an output, or the time of a commit.')]


@dataclass(frozen=True, slots=True)
class Tested:
    """The result of a test: whether it was acknowledged (None: pending), and the reason if not."""

    acknowledged: bool | None
    reason: str = ""


def sinks_router(site: Site, routes: APIRouter) -> None:
    def listed(request: Request, status: int = 200, **form: str) -> Response:
        ask = site.look if status == 200 else site.ask
        empty = {"name": "", "url": "", "queries": "", "wait": "", "secret": "", "error": ""}
        return site.render(
            request, "sinks.html", status, changes=True, sinks=sink_rows(ask),
            secrets=ask("sinks-secrets", {}), **empty | form,
        )  # fmt: skip

    def shown(request: Request, name: str, status: int = 200, error: str = "") -> Response:
        found = sink_view(site.ask if error else site.look, name)
        return site.render(request, "sink.html", status, changes=True, found=found, sink=found.sink, error=error)

    def back(name: str, done: str) -> Response:
        return site.show(f"/sinks/{segment(name)}", DONE[done])

    @routes.get("/sinks", response_class=HTMLResponse)
    def page(request: Request) -> Response:
        return listed(request)

    @routes.post("/sinks", response_class=HTMLResponse)
    def add_form(
        request: Request,
        name: _FormText = "",
        url: _FormText = "",
        queries: _FormText = "",
        wait: _FormText = "",
        secret: _FormText = "",
    ) -> Response:
        table: dict[str, Any] = {"kind": "webhook", "url": url.strip()}
        table |= {"queries": queries.replace(",", " ").split()} if queries.strip() else {}
        table |= {"wait": wait.strip()} if wait.strip() else {}
        table |= {"secret": [secret]} if secret else {}
        try:
            add_sink(site.ask, site.state, name.strip(), table)
        except InputError as error:
            return listed(request, 400, name=name, url=url, queries=queries, wait=wait, secret=secret, error=str(error))
        return back(name.strip(), "added")

    @routes.get("/sinks/{name}", response_class=HTMLResponse)
    def sink_page(request: Request, name: str) -> Response:
        return shown(request, name)

    def add_change(do: str, summary: str) -> None:
        @routes.post(f"/sinks/{{name}}/{do}")
        def form(name: str) -> Response:
            site.ask(f"sinks-{do}", {"name": name})
            return back(name, do)

        @routes.post(f"/api/v1/sinks/{{name}}/{do}", tags=["sinks"], summary=summary, name=do)
        def change(name: str) -> SinkRow:
            site.ask(f"sinks-{do}", {"name": name})
            return sink_view(site.ask, name).sink

    add_change("pause", "Pause a sink")
    add_change("resume", "Let a sink try again at once")

    @routes.post("/sinks/{name}/test", response_class=HTMLResponse)
    def test_form(request: Request, name: str) -> Response:
        problem = try_sink(site.ask, name, TEST_SECONDS)
        if problem:
            return shown(request, name, error=f"The test failed: {problem}")
        return back(name, "sent" if problem is None else "tested")

    @routes.post("/sinks/{name}/replay", response_class=HTMLResponse)
    def replay_form(request: Request, name: str, start: _FormText = "") -> Response:
        try:
            again = site.ask("sinks-replay", {"name": name, "from": start.strip() or "start"})
        except InputError as error:
            return shown(request, name, 400, error=str(error))
        return back(name, "replayed" if again else "stays")

    @routes.post("/sinks/{name}/remove", response_class=HTMLResponse)
    def remove_form(request: Request, name: str) -> Response:
        try:
            site.ask("sinks-remove", {"name": name})
        except InputError as error:
            return shown(request, name, 400, error=str(error))
        return site.show("/sinks", DONE["removed"])

    @routes.get("/api/v1/sinks", tags=["sinks"], summary="List the sinks")
    def sinks(response: Response) -> list[SinkRow]:
        response.headers.update(NO_STORE)
        return sink_rows(site.look)

    @routes.post("/api/v1/sinks", tags=["sinks"], summary="Add a sink")
    def add(name: _Name, table: _Table) -> SinkRow:
        add_sink(site.ask, site.state, name, table)
        return sink_view(site.ask, name).sink

    @routes.get("/api/v1/sinks/{name}", tags=["sinks"], summary="Show a sink, and what it did not get")
    def sink(name: str, response: Response) -> SinkView:
        response.headers.update(NO_STORE)
        return sink_view(site.look, name)

    @routes.patch("/api/v1/sinks/{name}", tags=["sinks"], summary="Change keys of a sink; null is the default")
    def set_keys(name: str, table: dict[str, Any]) -> SinkRow:
        set_sink(site.ask, site.state, name, table)
        return sink_view(site.ask, name).sink

    @routes.post("/api/v1/sinks/{name}/test", tags=["sinks"], summary="Send a test message")
    def test(name: str) -> Tested:
        problem = try_sink(site.ask, name, TEST_SECONDS)
        return Tested(None if problem is None else not problem, problem or "")

    @routes.post("/api/v1/sinks/{name}/replay", tags=["sinks"], summary="Deliver again from a place on")
    def replay(name: str, start: _Start) -> SinkRow:
        site.ask("sinks-replay", {"name": name, "from": start})
        return sink_view(site.ask, name).sink

    @routes.delete("/api/v1/sinks/{name}", tags=["sinks"], summary="Remove a sink")
    def remove(name: str) -> str:
        site.ask("sinks-remove", {"name": name})
        return name


ROUTERS = (sinks_router,)
