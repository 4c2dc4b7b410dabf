"""The endpoint for pushed documents, which answers after the commit with the fate of each."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from feeds.decoding import codec_of
from mmqjp.service.pushes import FEED, KINDS, LINES, MOST_BYTES, MOST_DOCUMENTS, PushReport
from mmqjp.web.guard import PUSH_PATH
from mmqjp.web.site import NO_STORE, ErrorBody, Site

LONGEST = 2_000  # maximum length of an id, an address, or the like, in characters

_DESCRIPTION = f"""Sends documents in one of these forms. They are committed together or not at all, and answered after
the commit. A client that gets no answer sends the same request again; nothing is stored twice. A decoded body has at
most {MOST_BYTES >> 20} MiB and {MOST_DOCUMENTS:,} lines. The token in `secrets/push-token` permits this and nothing
else."""

_REFUSALS = {
    400: "The request is invalid: nothing was processed.",
    413: "The body is too large: send it in parts.",
    415: "The media type is unknown.",
    429: "The client sends too many requests: wait as long as `Retry-After` says.",
    503: "The service cannot accept it now: send it again after `Retry-After`.",
}

_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([^\s;"']+)""", re.IGNORECASE)

_CONTENT = {kind: {"schema": {"type": "string"}} for kind in KINDS}

_Text = Annotated[str, Query(max_length=LONGEST)]


def _about(description: str) -> Any:
    return Query(max_length=LONGEST, description=description)


_Id = Annotated[str, _about("The id of the single document; by default a digest of the body.")]
_Stream = Annotated[str, _about("The stream of the single document; by default S.")]
_Time = Annotated[str, _about("Its time: ISO-8601, or microseconds since 1970; by default the time of reading.")]
_Feed = Annotated[str, _about("The address of the pushed feed; by default the one in the feed.")]
_Types = Annotated[bool, Query(description="Whether the elements of a JSON document carry their types.")]
_IdHeader = Annotated[str, Header(alias="Document-Id", max_length=LONGEST)]
_StreamHeader = Annotated[str, Header(alias="Document-Stream", max_length=LONGEST)]
_TimeHeader = Annotated[str, Header(alias="Document-Time", max_length=LONGEST)]
_Type = Annotated[str, Header(include_in_schema=False)]


def push_router(site: Site, routes: APIRouter) -> None:
    @routes.post(
        PUSH_PATH,
        tags=["documents"],
        summary="Push documents",
        description=_DESCRIPTION,
        response_model=PushReport,
        responses={status: {"description": text, "model": ErrorBody} for status, text in _REFUSALS.items()},
        openapi_extra={"requestBody": {"required": True, "content": _CONTENT}},
    )
    async def push(
        request: Request,
        id: _Id = "",
        stream: _Stream = "",
        time: _Time = "",
        feed: _Feed = "",
        types: _Types = False,
        id_header: _IdHeader = "",
        stream_header: _StreamHeader = "",
        time_header: _TimeHeader = "",
        content_type: _Type = "",
    ) -> Response:
        given = {"id": id or id_header, "stream": stream or stream_header, "time": time or time_header, "feed": feed}
        arguments = _kind_of(content_type) | {name: value for name, value in given.items() if value}
        arguments |= {"types": "true"} if types else {}
        if arguments["kind"] in (LINES, FEED) and (one := [name for name in ("id", "stream", "time") if given[name]]):
            raise HTTPException(400, f"{one[0]} is for a single document: a body of {content_type} contains it itself")
        client = request.client.host if request.client else ""
        length = request.headers.get("content-length", str(MOST_BYTES))
        pushes = site.pushes
        with pushes.admitted(client, int(length)):
            body, coding = await request.body(), request.headers.get("content-encoding", "")
            return Response(await pushes.push(body, coding, arguments), media_type="application/json", headers=NO_STORE)


def _kind_of(content_type: str) -> dict[str, str]:
    """Raises HTTPException 415."""
    media = content_type.partition(";")[0].strip().lower()
    charset = found[1] if (found := _CHARSET.search(content_type[:LONGEST])) else ""
    if (kind := KINDS.get(media)) is None:
        raise HTTPException(415, f"documents of type {media[:80]!r} are not known: send {', '.join(KINDS)}")
    codec = codec_of(charset) if charset else None
    if charset and codec is None:
        raise HTTPException(415, f"the charset {charset[:80]!r} is not known")
    return {"kind": kind, "type": content_type} | ({"charset": codec} if codec else {})


ROUTERS = (push_router,)
