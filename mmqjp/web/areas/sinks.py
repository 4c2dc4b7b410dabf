"""The sinks of a store: destinations, backlogs, missed outputs, and how to add, test, pause and replay them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from common.errors import InputError
from common.tools import from_json
from mmqjp.service.commands import SINKS, add_sink, set_sink, try_sink
from mmqjp.service.spool import SendCommand
from mmqjp.sinks.definition import PUSH_KINDS
from mmqjp.sinks.positions import SinkState
from mmqjp.sinks.secrets import make_secret
from mmqjp.web.site import NO_STORE, Link, Site, form_values, segment


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


@dataclass(frozen=True, slots=True)
class SinkField:
    """A field of a form, named like the key of the sink's table."""

    name: str
    label: str
    hint: str = ""
    type: str = "text"
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkForm:
    title: str
    about: str
    fields: tuple[SinkField, ...]


LINKS = (Link("/sinks", "Sinks", 40),)

TEST_SECONDS = 5.0  # seconds that a page waits for a test's result

DONE = {
    "added": "It was added. Send a test to check that deliveries arrive.",
    "pause": "It is paused. It keeps its position, as far back as its backlog allows.",
    "resume": "It tries again now.",
    "replayed": "It delivers again.",
    "stays": "There is nothing to deliver again from there on. It keeps its position.",
    "tested": "The test was acknowledged.",
    "written": "A file was written there, and removed again.",
    "sent": "The test is under way: load this page again for its result.",
    "removed": "The sink was removed.",
}
"""The result of an action, in words."""

QUERIES = SinkField("queries", "Queries", "Names, in which * stands for anything. Empty: all.")
START = SinkField(
    "from", "Begin", "Empty: now. Or start, the number of an output, or a time like 2026-05-04T10:30:00Z."
)
BODY = SinkField("body", "Outputs as", choices=("xml", "json"))
FILE_NAME = "Letters, digits, . - and _. It is created in the directory sinks of the state."

FORMS: Mapping[str, SinkForm] = {
    "webhook": SinkForm(
        "Webhook", "Each output is posted as JSON, in the format of Standard Webhooks, to a public address.",
        (
            SinkField("url", "Address", type="url", required=True), QUERIES,
            SinkField("wait", "Gather for", "Such as 30s or 5min. Empty: a message for each output."),
            SinkField("secret", "Sign with", "The name of a secret: create one below."),
            SinkField("format", "Message", choices=("json", "text")), BODY, START,
        ),
    ),
    "jsonl": SinkForm(
        "File of lines", "Each output is a line of JSON at the end of a file, exactly once.",
        (SinkField("path", "File", FILE_NAME, required=True), QUERIES, BODY, START),
    ),
    "parquet": SinkForm(
        "Parquet files", "Outputs are written to Parquet files in a directory, exactly once.",
        (
            SinkField("path", "Directory", FILE_NAME, required=True), QUERIES,
            SinkField("rows", "Rows of a file", "Empty: 100,000."),
            SinkField("every", "Close a file after", "Such as 10min. Empty: 1h."), START,
        ),
    ),
    "atom": SinkForm(
        "Atom feed", "A feed with archives, as files in a directory that your web server serves.",
        (
            SinkField("path", "Directory", FILE_NAME, required=True),
            SinkField("url", "Its address", "Where the directory is served.", type="url", required=True),
            SinkField("title", "Title", "Empty: the name of the sink."), QUERIES, START,
        ),
    ),
}  # fmt: skip
"""The kinds that can be added in the page. Mail servers and commands belong in the configuration file."""

OF_THE_FILE = """[sinks.morning]
kind = "mail"
server = "smtps://mail.example.org"
to = ["ann@example.org"]
at = "07:00"

[sinks.notify]
kind = "command"
command = ["notify-send", "mmqjp"]
"""
"""An example of the kinds that only the configuration file may have."""


def sink_table(kind: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the table of a sink from a form, without empty fields."""
    table: dict[str, Any] = {"kind": kind}
    for one in FORMS[kind].fields:
        if not (text := given.get(one.name, "").strip()):
            continue
        if one.name == "queries":
            table["queries"] = text.replace(",", " ").split()
        elif one.name == "rows" and text.isdecimal() and len(text) < 19:
            table["rows"] = int(text)
        else:
            table[one.name] = [text] if one.name == "secret" else text
    return table


_PLACES = (
    ("name", r".*sink's name|there is a sink .* already|the name .* is reserved"),
    ("path", r"the sinks .* have the same path"),
    ("secret", r"a secret is named"),
)


def field_of(message: str, name: str) -> tuple[str, str]:
    """Returns the field that an error message is about ("" for none), and the mistake.

    >>> field_of("the sink a: url: write an http or https address", "a")
    ('url', 'write an http or https address')
    """
    if found := re.match(rf"the sink {re.escape(name)}: ([a-z_]+): (.*)", message, re.DOTALL):
        return found[1], found[2]
    return next((field for field, pattern in _PLACES if re.match(pattern, message)), ""), message


_FormText = Annotated[str, Form(max_length=4_000)]
_Name = Annotated[str, Body()]
_Table = Annotated[dict[str, Any], Body(description="Its keys as in the configuration file.")]
_Start = Annotated[str, Body(embed=True, description='"start", the number of an output, or the time of a commit.')]


@dataclass(frozen=True, slots=True)
class MadeSecret:
    """A new secret, which nothing shows again."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Tested:
    """The result of a test: whether it was acknowledged (None: pending), and the reason if not."""

    acknowledged: bool | None
    reason: str = ""


def sinks_router(site: Site, routes: APIRouter) -> None:
    def listed(
        request: Request, status: int = 200, kind: str = "webhook", given: Mapping[str, str] | None = None, **found: Any
    ) -> Response:
        ask = site.look if status == 200 and not found else site.ask
        kind = kind if kind in FORMS else "webhook"
        empty = dict.fromkeys(("name", *(one.name for one in FORMS[kind].fields)), "")
        context = {"error": "", "made": None, "secret_error": "", "secret_name": ""} | found
        context |= {"given": {**empty, **(given or {})}, "wrong": {**empty, **found.get("wrong", {})}}
        return site.render(
            request, "sinks.html", status, changes=True, sinks=sink_rows(ask), secrets=ask("sinks-secrets", {}),
            forms=FORMS, kind=kind, of_the_file=OF_THE_FILE, **context,
        )  # fmt: skip

    def shown(request: Request, name: str, status: int = 200, error: str = "") -> Response:
        found = sink_view(site.ask if error else site.look, name)
        return site.render(request, "sink.html", status, changes=True, found=found, sink=found.sink, error=error)

    def back(name: str, done: str) -> Response:
        return site.show(f"/sinks/{segment(name)}", DONE[done])

    @routes.get("/sinks", response_class=HTMLResponse)
    def page(request: Request, kind: Annotated[str, Query(max_length=100)] = "webhook") -> Response:
        return listed(request, kind=kind)

    @routes.post("/sinks", response_class=HTMLResponse)
    def add_form(request: Request, given: Annotated[dict[str, str], Depends(form_values)]) -> Response:
        kind, name = given.get("kind", "webhook"), given.get("name", "").strip()
        if kind not in FORMS:
            return listed(request, 400, given=given, error=f"a sink of the kind {kind[:40]!r} cannot be added here")
        try:
            add_sink(site.ask, site.state, name, sink_table(kind, given))
        except InputError as error:
            field, message = field_of(str(error), name)
            known = field == "name" or any(one.name == field for one in FORMS[kind].fields)
            errors = {"wrong": {field: message}} if known else {"error": str(error)}
            return listed(request, 400, kind, given, **errors)
        return back(name, "added")

    @routes.post("/sinks/secrets", response_class=HTMLResponse)
    def secret_form(request: Request, name: _FormText = "") -> Response:
        try:
            return listed(request, made=made_secret(name.strip()))
        except InputError as error:
            return listed(request, 400, secret_name=name, secret_error=str(error))

    def made_secret(name: str) -> MadeSecret:
        return MadeSecret(name, make_secret(site.state, name))

    @routes.get("/api/v1/secrets", tags=["sinks"], summary="List the names of secrets")
    def secrets(response: Response) -> list[str]:
        response.headers.update(NO_STORE)
        found: list[str] = site.ask("sinks-secrets", {})
        return found

    @routes.post("/api/v1/secrets", tags=["sinks"], summary="Create a secret; its value is shown only once")
    def make(name: Annotated[str, Body(embed=True, max_length=100)], response: Response) -> MadeSecret:
        response.headers.update(NO_STORE)
        return made_secret(name)

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
    add_change("resume", "Make a sink try again at once")

    @routes.post("/sinks/{name}/test", response_class=HTMLResponse)
    def test_form(request: Request, name: str) -> Response:
        problem = try_sink(site.ask, name, TEST_SECONDS)
        if problem:
            return shown(request, name, error=f"The test failed: {problem}")
        is_push = sink_view(site.ask, name).sink.kind in PUSH_KINDS
        return back(name, "sent" if problem is None else "tested" if is_push else "written")

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

    @routes.patch("/api/v1/sinks/{name}", tags=["sinks"], summary="Change keys of a sink; null restores the default")
    def set_keys(name: str, table: dict[str, Any]) -> SinkRow:
        set_sink(site.ask, site.state, name, table)
        return sink_view(site.ask, name).sink

    @routes.post("/api/v1/sinks/{name}/test", tags=["sinks"], summary="Send a test message")
    def test(name: str) -> Tested:
        problem = try_sink(site.ask, name, TEST_SECONDS)
        return Tested(None if problem is None else not problem, problem or "")

    @routes.post("/api/v1/sinks/{name}/replay", tags=["sinks"], summary="Deliver again from a position on")
    def replay(name: str, start: _Start) -> SinkRow:
        site.ask("sinks-replay", {"name": name, "from": start})
        return sink_view(site.ask, name).sink

    @routes.delete("/api/v1/sinks/{name}", tags=["sinks"], summary="Remove a sink")
    def remove(name: str) -> str:
        site.ask("sinks-remove", {"name": name})
        return name


ROUTERS = (sinks_router,)
