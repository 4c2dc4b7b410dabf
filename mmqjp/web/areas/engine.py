"""The engine page: throughput, lag, watermarks, work by the hour, and caches; also the login page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from common.dates import HOUR, SECOND
from mmqjp.service.status import Status
from mmqjp.web.site import COOKIE_SECONDS, NO_STORE, Link, Site, TooManyAttempts

HOURS, RECENT = 48, 20  # hours of work shown, and number of last batches whose throughput is shown

MOST_ROWS, SECONDS = 1_000, 10.0  # limits of a SELECT


@dataclass(frozen=True, slots=True)
class Hour:
    """The work of an hour: its start in microseconds, and its documents and outputs."""

    begin: int
    documents: int
    outputs: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """The status of the store, and its work. `documents_a_second` is the throughput of the last batches while they ran
    (None: no batch); `lag_us` is the age of the newest document at the time of the status. `counters` of stages 1 and 2
    and the last `plan` are set if the process that holds the store reports them."""

    status: Status
    documents_a_second: float | None
    lag_us: int | None
    last_batch: int | None
    hours: Sequence[Hour]
    counters: Mapping[str, Mapping[str, int]]
    plan: str | None


def _hours(site: Site) -> list[Hour]:
    now = site.now() // HOUR
    since = now - HOURS + 1
    rows: list[dict[str, Any]] = site.look_up(
        f"SELECT committed_at // {HOUR} AS hour, sum(documents) AS documents, sum(outputs) AS outputs FROM batches "
        f"WHERE committed_at >= {since * HOUR} GROUP BY hour", MOST_ROWS, SECONDS,
    ).to_pylist()  # fmt: skip
    worked = {row["hour"]: (int(row["documents"]), int(row["outputs"])) for row in rows}
    return [Hour(hour * HOUR, *worked.get(hour, (0, 0))) for hour in range(since, now + 1)]


LINKS = (Link("/engine", "Engine", 50),)


def engine_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/engine", response_class=HTMLResponse)
    def page(request: Request) -> Response:
        found = engine()
        documents = [(hour.begin, hour.documents) for hour in found.hours]
        outputs = [(hour.begin, hour.outputs) for hour in found.hours]
        return site.render(request, "engine.html", found=found, documents=documents, outputs=outputs)

    @routes.get("/api/v1/engine", tags=["store"], summary="Show the state of the engine")
    def engine() -> EngineView:
        status = Status.from_dict(site.look("status", {}))
        counters = site.look("counters", {})
        latest = [stream.latest for stream in status.streams if stream.latest is not None]
        recent = site.look_up(
            f"SELECT taken_at, committed_at, documents FROM batches ORDER BY batch DESC LIMIT {RECENT}", RECENT, SECONDS
        ).to_pylist()
        spent = sum(row["committed_at"] - row["taken_at"] for row in recent) / SECOND
        documents = sum(row["documents"] for row in recent)
        return EngineView(
            status,
            documents / spent if spent > 0 and documents else None,
            site.now() - max(latest) if latest else None,
            max((row["committed_at"] for row in recent), default=None),
            _hours(site),
            {key: counters[key] for key in ("stage1", "stage2")},
            counters["plan"],
        )


LONGEST = 500  # maximum length of a token that is checked


def login_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/login", response_class=HTMLResponse)
    async def form(request: Request, next: str = "/", code: str = "") -> Response:
        if code and site.access.use_code(code[:LONGEST]):
            return logged_in(site, next)
        wrong = "This link has already been used. Log in with the token instead." if code else ""
        return page(request, next, wrong)

    @routes.post("/login", response_class=HTMLResponse)
    async def log_in(
        request: Request, token: Annotated[str, Form(max_length=LONGEST)] = "", next: Annotated[str, Form()] = "/"
    ) -> Response:
        address = request.client.host if request.client else ""
        try:
            if site.access.is_token(token.strip(), address):
                return logged_in(site, next)
        except TooManyAttempts as error:
            return page(request, next, f"{str(error).capitalize()}.", 429)
        return page(request, next, "That is not the token.", 401)

    @routes.post("/logout")
    async def log_out() -> Response:
        response = RedirectResponse("/login", 303)
        response.delete_cookie(site.access.cookie, path=site.prefix or "/", httponly=True, samesite="lax")
        return response

    def page(request: Request, next: str, wrong: str, status: int = 200) -> Response:
        return site.render(request, "login.html", status, changes=True, next=local(next), wrong=wrong)


def logged_in(site: Site, next: str) -> Response:
    response, access = RedirectResponse(local(next), 303, NO_STORE), site.access
    response.set_cookie(
        access.cookie, access.make_cookie(), max_age=COOKIE_SECONDS, path=site.prefix or "/",
        secure=site.public_url.startswith("https:"), httponly=True, samesite="lax",
    )  # fmt: skip
    return response


def local(address: str) -> str:
    """Returns an address if it is on this site, else that of the home page.

    >>> local("/q/x?after=1"), local("//elsewhere"), local("https://elsewhere"), local("/\\\\elsewhere")
    ('/q/x?after=1', '/', '/', '/')
    """
    is_local = address.startswith("/") and address[1:2] not in ("/", "\\") and address.isprintable()
    return address if is_local else "/"


ROUTERS = (engine_router, login_router)
