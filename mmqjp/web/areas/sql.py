"""Questions in SQL over the tables of the store, and their answers as a table, CSV or JSON."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import Field

from common.errors import MmqjpError
from join_stage.store.reading import LONGEST
from mmqjp.present.data_formats import write_csv_rows, write_json_array
from mmqjp.present.rows import cell, distinct, readable, text
from mmqjp.present.times import IN_UTC, Clock
from mmqjp.web.errors import status_of
from mmqjp.web.guard import ELSEWHERE
from mmqjp.web.site import Link, Site
from mmqjp.web.views.sql import EXAMPLES, MOST_ROWS, Answer, Table, answer, tables

LINKS = (Link("/sql", "SQL", 70),)

LONGEST_CELL = 400
"""Longer values are cut short on the page, in characters."""

Sql = Annotated[str, Query(max_length=LONGEST, description="A SELECT in the SQL of DuckDB.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """A SELECT in the SQL of DuckDB."""

    sql: Annotated[str, Field(max_length=LONGEST)]


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    @routes.get("/sql", response_class=HTMLResponse)
    def page(request: Request, sql: Sql = "") -> Response:
        found, error, status = None, "", 200
        if sql.strip() and request.headers.get("sec-fetch-site") in ELSEWHERE:
            error = "this question comes from another page: read it, and run it if you like"
        elif sql.strip():
            try:
                found = answer(site, sql)
            except MmqjpError as refused:
                error, status = str(refused), status_of(refused)
        rows, headings = ([], []) if found is None else _laid_out(found, site.clock)
        response = site.render(
            request, "sql.html", status, sql=sql, found=found, rows=rows, headings=headings, error=error,
            tables=tables(site), examples=EXAMPLES, most=MOST_ROWS,
        )  # fmt: skip
        if error:
            response.headers["Cache-Control"] = "no-store"  # whether it runs depends on where it comes from
        return response

    @routes.get("/sql/answer.csv")
    def as_csv(sql: Sql) -> Response:
        found, out = answer(site, sql), io.BytesIO()
        rows = readable(found.columns, found.rows, IN_UTC)
        write_csv_rows(found.columns, (map(cell, row) for row in rows), out)
        return _download(out, "csv", "text/csv; charset=utf-8")

    @routes.get("/sql/answer.json")
    def as_json(sql: Sql) -> Response:
        found, out = answer(site, sql), io.BytesIO()
        keys = distinct(found.columns)
        rows = readable(found.columns, found.rows, IN_UTC)
        write_json_array((dict(zip(keys, row, strict=True)) for row in rows), out)
        return _download(out, "json", "application/json")

    @routes.get("/api/v1/sql", tags=["store"], summary="Answer a SELECT over the tables of the store")
    def ask(sql: Sql) -> Answer:
        return answer(site, sql)

    @routes.post("/api/v1/sql", tags=["store"], summary="The same, for a long SELECT")
    def ask_long(asked: Asked) -> Answer:
        return answer(site, asked.sql)

    @routes.get("/api/v1/tables", tags=["store"], summary="List the tables of the store")
    def list_tables() -> list[Table]:
        return tables(site)

    return routes


def _download(out: io.BytesIO, kind: str, media_type: str) -> Response:
    named = {"Content-Disposition": f'attachment; filename="answer.{kind}"'}
    return Response(out.getvalue(), media_type=media_type, headers=named)


def _laid_out(found: Answer, clock: Clock) -> tuple[list[list[object]], list[tuple[str, str]]]:
    """The rows of an answer as the page shows them; the headings, with the class of columns of numbers."""
    rows = [list(map(_shown, row)) for row in readable(found.columns, found.rows, clock)]
    numbers = [
        all(isinstance(row[place], int | float) or row[place] == "" for row in rows)
        for place in range(len(found.columns))
    ]
    return rows, [
        (name or " ", "n" if number and rows else "") for name, number in zip(found.columns, numbers, strict=True)
    ]


def _shown(value: Any) -> object:
    """A value for the page: numbers stay numbers, so that they line up."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    whole = text(value)
    return whole if len(whole) <= LONGEST_CELL else whole[: LONGEST_CELL - 1] + "…"
