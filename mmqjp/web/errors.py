"""Errors as browsers and scripts get them: a page, or JSON under `/api/`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from common.errors import InputError, MmqjpError, OperationalError
from mmqjp.queries.changes import UnknownQuery
from mmqjp.web.access import ATTEMPTS_SECONDS, TooManyAttempts
from mmqjp.web.readers import Busy, TooSlow
from mmqjp.web.site import Site
from xscl import XsclErrors

API = "/api/"
"""Below this, errors are JSON."""

MOST_MISTAKES = 100
"""The most mistakes that one answer has."""

HEADINGS = {
    400: "That cannot be done",
    401: "You are not logged in",
    403: "That is not allowed",
    404: "There is no such page",
    405: "That cannot be done here",
    408: "That took too long",
    409: "That cannot be done now",
    410: "That is gone",
    413: "That is too large",
    421: "Wrong address",
    429: "Too many attempts",
    503: "Try again in a moment",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in what was sent: where, counted from 1 (None: nowhere in particular), what, and what may help."""

    line: int | None
    column: int | None
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What the API answers if it cannot do what it is asked for."""

    error: str
    errors: Sequence[Mistake] = ()


def problem_response(site: Site, request: Request, status: int, problem: Problem) -> Response:
    """Returns an error as a page, or as JSON for the API."""
    if request.url.path.startswith(API):
        return JSONResponse(asdict(problem), status)
    heading = HEADINGS.get(status, "Something went wrong")
    return site.render(request, "error.html", status, heading=heading, problem=problem)


def mistakes_of(errors: XsclErrors) -> list[Mistake]:
    """Returns the mistakes of XSCL text."""
    return [Mistake(one.line, one.column, one.message, one.hint or None) for one in errors.errors[:MOST_MISTAKES]]


def status_of(error: MmqjpError) -> int:
    """Returns the HTTP status of an error of ours."""
    match error:
        case UnknownQuery():
            return 404
        case TooManyAttempts():
            return 429
        case Busy() | TooSlow():
            return 503
        case InputError():
            return 400
        case OperationalError():
            return 503
    return 500


def handle_errors(app: FastAPI, site: Site) -> None:
    """Makes an app answer errors in one form."""

    def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, MmqjpError)
        mistakes = mistakes_of(error) if isinstance(error, XsclErrors) else ()
        status = status_of(error)
        response = problem_response(site, request, status, Problem(str(error), mistakes))
        if status in (429, 503):
            response.headers["Retry-After"] = f"{ATTEMPTS_SECONDS:.0f}" if status == 429 else "1"
        return response

    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = problem_response(site, request, error.status_code, Problem(str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        mistakes = [
            Mistake(None, None, f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}"[:500]) for one in error.errors()
        ]
        return problem_response(site, request, 400, Problem("the request is not as it should be", mistakes))

    def unexpected(request: Request, error: Exception) -> Response:
        text = f"unexpected {type(error).__name__}; the log of the server has more"
        return problem_response(site, request, 500, Problem(text))

    app.add_exception_handler(MmqjpError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


def plain_problem(path: str, status: int, message: str) -> Response:
    """Returns an error without a site, for requests that are refused before any page is made."""
    if path.startswith(API):
        return Response(json.dumps({"error": message, "errors": []}), status, media_type="application/json")
    return Response(f"{message}\n", status, media_type="text/plain; charset=utf-8")
