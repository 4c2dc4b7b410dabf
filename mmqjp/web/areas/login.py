"""The page where one logs in, with the token or a code."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from mmqjp.web.access import COOKIE_SECONDS, TooManyAttempts
from mmqjp.web.site import Site

LONGEST = 500
"""The most characters of a token that are looked at."""


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/login", response_class=HTMLResponse)
    async def form(request: Request, next: str = "/", code: str = "") -> Response:
        if code and site.access.use_code(code[:LONGEST]):
            return logged_in(site, next)
        wrong = "This link has been used. Take the token instead." if code else ""
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
        response.delete_cookie(site.access.cookie, path="/", httponly=True, samesite="lax")
        return response

    def page(request: Request, next: str, wrong: str, status: int = 200) -> Response:
        response = site.render(request, "login.html", status, next=local(next), wrong=wrong)
        response.headers["Cache-Control"] = "no-store"
        return response

    return routes


def logged_in(site: Site, next: str) -> Response:
    """Returns a redirection that sets the cookie."""
    response = RedirectResponse(local(next), 303, {"Cache-Control": "no-store"})
    response.set_cookie(
        site.access.cookie,
        site.access.make_cookie(),
        max_age=COOKIE_SECONDS,
        path="/",
        secure=site.public_url.startswith("https:"),
        httponly=True,
        samesite="lax",
    )
    return response


def local(address: str) -> str:
    """Returns an address if it is one of this site, else that of its first page.

    >>> local("/q/x?after=1"), local("//elsewhere"), local("https://elsewhere"), local("/\\\\elsewhere")
    ('/q/x?after=1', '/', '/', '/')
    """
    is_local = address.startswith("/") and address[1:2] not in ("/", "\\") and address.isprintable()
    return address if is_local else "/"
