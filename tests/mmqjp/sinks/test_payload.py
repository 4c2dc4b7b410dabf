"""The JSON of a message, read by a parser of JSON."""

import json

from mmqjp.sinks.sink import MOST_BYTES, Message, payload
from tests.support.messages import match, message


def read(given: Message):
    text = payload(given)
    assert text.endswith(b"\n") and text.count(b"\n") == 1 and text == payload(given)
    return json.loads(text)


def test_a_message_has_output_lines_and_their_items():
    one = match(7, "Grüße \u2028 <b>")
    assert read(message(one, more=3)) == {
        "type": "mmqjp.outputs",
        "timestamp": "2026-05-06T12:00:00Z",
        "sink": "alerts",
        "more": 3,
        "outputs": [
            json.loads(one.output.to_line())
            | {
                "items": [
                    {
                        "id": "d7",
                        "stream": "S",
                        "time": "2026-05-06T12:00:00Z",
                        "title": "Grüße \u2028 <b>",
                        "url": "https://a.example/7",
                        "feed": "A feed",
                    }
                ]
            }
        ],
    }


def test_a_test_says_so_and_has_no_outputs():
    found = read(message())
    assert (found["type"], found["outputs"]) == ("mmqjp.test", [])


def test_xml_that_would_make_it_too_large_is_left_out():
    large = "é" * (MOST_BYTES // 2)
    found = read(message(match(0), match(1, xml=large), match(2), match(3, xml=large)))["outputs"]
    assert ["xml" in one for one in found] == [True, False, True, False]
    assert [one.get("xml_bytes") for one in found] == [None, MOST_BYTES, None, MOST_BYTES]
    many = payload(message(*(match(seq, xml="x" * 1_000) for seq in range(40))))
    assert len(many) < 2 * MOST_BYTES and len(json.loads(many)["outputs"]) == 40
