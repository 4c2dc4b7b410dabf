"""Questions in SQL over the tables of the store: one SELECT's rows as a table, CSV or JSON; and the tables."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup
from starlette.datastructures import Headers

from common.errors import MmqjpError
from join_stage.store.protocol import LONGEST, QuestionRefused
from mmqjp.present.item import IN_UTC, TimeFormat, cell, cell_text, format_rows, unique_keys
from mmqjp.present.terminal import write_csv_rows, write_json_array
from mmqjp.service.log import column_values
from mmqjp.web.site import Link, Site, status_of

MOST_ROWS, SECONDS = 1_000, 5.0  # limits of an answer: rows, and seconds

EXAMPLES = {
    "Outputs of each query": """SELECT query, count(*) AS outputs, max(t1) AS t1
FROM outputs GROUP BY query ORDER BY outputs DESC""",
    "Items of each feed": """SELECT feed_title, count(*) AS items, max(published) AS published
FROM items GROUP BY feed_title ORDER BY items DESC""",
    "What was rejected, and why": """SELECT reason, count(*) AS documents
FROM dead_letters GROUP BY reason ORDER BY documents DESC""",
    "The largest documents": """SELECT id, stream, t0, length(xml) AS characters
FROM documents ORDER BY characters DESC LIMIT 20""",
    "The work of the last batches": """SELECT batch, documents, outputs, committed_at
FROM batches ORDER BY batch DESC LIMIT 50""",
}
"""Sample questions."""


@dataclass(frozen=True, slots=True)
class SqlResult:
    """Columns, whose names may repeat, and rows. `is_cut`: there are more than MOST_ROWS."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view of a store, with its columns."""

    name: str
    columns: Sequence[str]


def answer(site: Site, sql: str) -> SqlResult:
    """Returns the rows of a SELECT. Raises QuestionRefused for other SQL, TooSlow, Busy, StoreError."""
    question = sql.strip().rstrip(";").rstrip()
    if not question:
        raise QuestionRefused("there is no question yet: write a SELECT")
    bounded = f"SELECT * FROM (\n{question}\n) AS answer LIMIT {MOST_ROWS + 1}"
    with site.slow():
        found = site.reader.select(bounded, MOST_ROWS + 1, SECONDS)
    columns = [column_values(column) for column in found.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return SqlResult(found.column_names, rows[:MOST_ROWS], len(rows) > MOST_ROWS)


LINKS = (Link("/sql", "SQL", 70),)

LONGEST_CELL = 400  # maximum length of a value on the page, in characters

_WHAT = "A SELECT in the SQL of DuckDB."
Sql = Annotated[str, Query(max_length=LONGEST, description=_WHAT)]
_SentSql = Annotated[str, Form(max_length=LONGEST, description=_WHAT)]


class _TimeElements(TimeFormat):
    """Formats times as elements of a page, which shows them in the visitor's zone, to the second."""

    def iso(self, microseconds: int) -> str:
        element = Markup('<time class="exact" datetime="{0}" title="{0}">{1}</time>')
        return element.format(IN_UTC.iso(microseconds), self.utc(microseconds).removesuffix(" UTC"))


def sql_router(site: Site, routes: APIRouter) -> None:
    def shown(request: Request, sql: str, found: SqlResult | None, error: str = "", status: int = 200) -> Response:
        given = [] if found is None else format_rows(found.columns, found.rows, _TimeElements())
        rows = [list(map(_shown, row)) for row in given]
        headings = []
        for place, name in enumerate([] if found is None else found.columns):
            is_number = all(isinstance(row[place], int | float) or row[place] == "" for row in rows)
            headings.append((name or " ", "n" if is_number and rows else ""))
        return site.render(
            request, "sql.html", status, sql=sql, found=found, rows=rows, headings=headings, error=error,
            tables=list_tables(), examples=EXAMPLES, most=MOST_ROWS,
        )  # fmt: skip

    @routes.get("/sql", response_class=HTMLResponse)
    def page(request: Request, sql: Sql = "") -> Response:
        return shown(request, sql, None)

    # Only forms of this site run SQL; a bare address, which anybody can make a user follow, does not.
    @routes.post("/sql", response_class=HTMLResponse)
    def asked_on_page(request: Request, sql: _SentSql = "") -> Response:
        try:
            return shown(request, sql, answer(site, sql))
        except MmqjpError as refused:
            return shown(request, sql, None, str(refused), status_of(refused))

    @routes.post("/sql/answer.csv")
    def as_csv(sql: _SentSql) -> Response:
        found, out = answer(site, sql), io.BytesIO()
        rows = format_rows(found.columns, found.rows, IN_UTC)
        write_csv_rows(found.columns, (map(cell, row) for row in rows), out)
        return _download(out, "csv", "text/csv; charset=utf-8")

    @routes.post("/sql/answer.json")
    def as_json(sql: _SentSql) -> Response:
        found, out = answer(site, sql), io.BytesIO()
        keys = unique_keys(found.columns)
        rows = format_rows(found.columns, found.rows, IN_UTC)
        write_json_array((dict(zip(keys, row, strict=True)) for row in rows), out)
        return _download(out, "json", "application/json")

    @routes.get("/api/v1/sql", tags=["store"], summary="Answer a SELECT over the tables of the store")
    def ask(request: Request, sql: Sql) -> SqlResult:
        if not _is_by_program(request.headers, is_open=site.access.is_open):
            raise HTTPException(403, "following a link runs no SQL: open /sql, or send the token in a header")
        return answer(site, sql)

    @routes.post("/api/v1/sql", tags=["store"], summary="The same, for a long SELECT")
    def ask_long(sql: Annotated[str, Body(embed=True, max_length=LONGEST, description=_WHAT)]) -> SqlResult:
        return answer(site, sql)

    @routes.get("/api/v1/tables", tags=["store"], summary="List the tables of the store")
    def list_tables() -> list[Table]:
        return [Table(name, columns) for name, columns in site.columns.items()]


def _is_by_program(headers: Headers, *, is_open: bool) -> bool:
    """Whether a GET comes from a program or a script of this site, not from a browser that follows a link."""
    if headers.get("authorization") is not None:
        return True
    if (comes_from := headers.get("sec-fetch-site")) is not None:
        return comes_from == "same-origin" and headers.get("sec-fetch-mode") != "navigate"
    return is_open and "text/html" not in headers.get("accept", "")


def _download(out: io.BytesIO, kind: str, media_type: str) -> Response:
    named = {"Content-Disposition": f'attachment; filename="answer.{kind}"'}
    return Response(out.getvalue(), media_type=media_type, headers=named)


def _shown(value: Any) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    whole = cell_text(value)
    return whole if len(whole) <= LONGEST_CELL else whole[: LONGEST_CELL - 1] + "…"


ROUTERS = (sql_router,)
