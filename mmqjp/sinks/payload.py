"""The JSON of a message, as webhooks and commands get it: the same bytes in every attempt."""

from __future__ import annotations

from typing import Any

from feeds.dates import iso_utc
from mmqjp.present.item import Item
from mmqjp.present.match import Match
from mmqjp.sinks.message import Message
from mmqjp.text import json_line

OUTPUTS, TEST = "mmqjp.outputs", "mmqjp.test"
"""The types of messages."""

MOST_BYTES = 20 << 10
"""Outputs leave out their XML once a message would be larger: receivers take about so much."""


def payload(message: Message) -> bytes:
    """Returns a JSON object in UTF-8, on one line.

    Its `outputs` are output lines with `items`. One that would make the object larger than MOST_BYTES has `xml_bytes`,
    the size of its XML, instead of `xml`. A message without outputs is a test.
    """
    size = 200
    outputs = []
    for match in message.matches:
        shown = _output(match)
        size += len(json_line(shown)) + 1
        if size > MOST_BYTES and "xml" in shown:
            xml = shown.pop("xml").encode()
            size -= len(xml)
            shown["xml_bytes"] = len(xml)
        outputs.append(shown)
    found = {
        "type": OUTPUTS if message.matches else TEST,
        "timestamp": iso_utc(message.committed_at),
        "sink": message.sink,
        "more": message.more,
        "outputs": outputs,
    }
    return json_line(found)


def _output(match: Match) -> dict[str, Any]:
    return match.output.to_dict() | {"items": [_item(item) for item in match.items]}


def _item(item: Item) -> dict[str, Any]:
    time = None if item.time is None else iso_utc(item.time)
    feed = item.feed or item.site
    return {"id": item.id, "stream": item.stream, "time": time, "title": item.title, "url": item.link, "feed": feed}
