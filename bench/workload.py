"""A lifelike feed workload of any size: items of many channels, and queries of ten kinds that readers would ask.

    python -m bench.workload --items 10000 --queries 10000 --out DIR

writes `items.jsonl` and `queries.xscl`. The same `--seed` gives the same files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from xml.sax.saxutils import escape, quoteattr

from feeds.documents import Document

START = 1_780_000_000_000_000
HOUR = 3_600_000_000
CHANNELS, CATEGORIES = 200, 80
_TEXT = (
    "open model data storm court budget release study energy market city train vote health science record "
    "music coast bank school water phone chip law film river trade safety update plan night"
)
WORDS = _TEXT.split()


def channel(number: int) -> str:
    return f"https://feed{number}.example/"


def author(channel_number: int, number: int) -> str:
    return f"{WORDS[channel_number % len(WORDS)].title()} Writer {channel_number}-{number}"


def category(number: int) -> str:
    return f"{WORDS[number % len(WORDS)]} {number // len(WORDS)}".strip()


def items(count: int, seed: int = 1) -> Iterator[Document]:
    """`count` items in order of time, about 300 a day: some stories syndicated, retitled, linked or with enclosures."""
    rng = Random(seed)
    told: list[tuple[str, str, str, int]] = []
    time = START
    for number in range(count):
        time += rng.randint(0, 600_000_000)
        source = int(CHANNELS * rng.random() ** 2)
        title = " ".join(rng.choice(WORDS) for _ in range(7)).capitalize() + f" {number}"
        url, guid = f"{channel(source)}story/{number}", f"urn:story:{number}"
        links: list[str] = []
        kind = rng.random()
        if told and kind < 0.30:
            old_title, old_url, old_guid, old_source = rng.choice(told[-400:])
            if kind < 0.10:
                title = old_title.upper() if rng.random() < 0.3 else old_title
                url = f"{old_url}?utm_source=feed{source}" if rng.random() < 0.5 else url
            elif kind < 0.15:
                source, guid, url, title = old_source, old_guid, old_url, f"Updated: {old_title}"
            else:
                links.append(old_url)
        told.append((title, url, guid, source))
        yield _item(rng, number, time, source, title, url, guid, links)


def _item(
    rng: Random, number: int, time: int, source: int, title: str, url: str, guid: str, links: list[str]
) -> Document:
    stamp = f"{time // 1_000_000}"
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(10, 40)))
    parts = [f"<item_url>{escape(url)}</item_url>", f"<channel_url>{channel(source)}</channel_url>"]
    parts += [f"<title>{escape(title)}</title>", f"<timestamp>{stamp}</timestamp>"]
    parts += [f"<description>{text}</description>"] if rng.random() < 0.9 else []
    parts += [f"<author>{author(source, rng.randint(0, 4))}</author>" for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    chosen = {int(CATEGORIES * rng.random() ** 2) for _ in range(rng.choice([0, 1, 2, 2, 3]))}
    parts += [f"<category>{category(c)}</category>" for c in sorted(chosen)]
    parts += [f"<link rel='related' href={quoteattr(link)}/>" for link in links]
    if rng.random() < 0.05:
        parts.append(f"<link rel='enclosure' href='https://cdn.example/{rng.randint(0, 300)}.mp3'/>")
    parts.append(f"<guid>{escape(guid)}</guid>")
    return Document(f"item-{number}", f"<item>{''.join(parts)}</item>", time=time)


def queries(count: int, seed: int = 2) -> str:
    """A script of `count` queries, the ten kinds in turn, each with constants and a window of its own."""
    rng = Random(seed)
    texts = [
        "FROM S//item->a[./title->t][./channel_url->c] FOLLOWED BY {t = t' AND c != c', 48 h} "
        "S//item->b[./title->t'][./channel_url->c'] PUBLISH same_story"
    ]
    while len(texts) < count:
        texts.append(_KINDS[len(texts) % len(_KINDS)](rng, len(texts)))
    return ";\n".join(texts[:count]) + "\n"


def _channel(rng: Random) -> str:
    return f'[./channel_url = "{channel(rng.randrange(CHANNELS))}"]'


def _category(rng: Random) -> str:
    return f'[./category = "{category(rng.randrange(CATEGORIES))}"]'


def _window(rng: Random, most: int) -> str:
    return f"{rng.randint(1, most)} h"


def _same_story(rng: Random, n: int) -> str:
    return (
        f"FROM S//item->a{_channel(rng)}[./title->t][./channel_url->c] FOLLOWED BY "
        f"{{lower-case(t) = lower-case(t') AND c != c', {_window(rng, 96)}}} "
        f"S//item->b[./title->t'][./channel_url->c']"
    )


def _same_page(rng: Random, n: int) -> str:
    return (
        f"FROM S//item->a{_channel(rng)}[./item_url->u][./guid->g] JOIN "
        f"{{canonical-url(u) = canonical-url(u') AND g != g', {_window(rng, 200)}}} "
        "S//item->b[./item_url->u'][./guid->g']"
    )


def _follow_up(rng: Random, n: int) -> str:
    return (
        f"SELECT a/title AS earlier, b/title AS later FROM S//item->a{_channel(rng)}[./item_url->u] "
        f"FOLLOWED BY {{u = h, {_window(rng, 200)}}} S//item->b[./link/@href->h]"
    )


def _prolific(rng: Random, n: int) -> str:
    name = author(rng.randrange(CHANNELS), rng.randint(0, 4))
    return (
        f'FROM S//item->a[./author->w[. = "{name}"]][./category->k] '
        f"FOLLOWED BY {{w = w' AND k = k', {_window(rng, 48)}}} "
        "S//item->b[./author->w'][./category->k']"
    )


def _retitled(rng: Random, n: int) -> str:
    return (
        f"FROM S//item->a{_channel(rng)}[./guid->g][./title->t] JOIN {{g = g' AND t != t', {_window(rng, 500)}}} "
        "S//item->b[./guid->g'][./title->t']"
    )


def _keyword(rng: Random, n: int) -> str:
    word, other = rng.choice(WORDS), rng.choice(WORDS)
    return (
        f"SELECT i/title AS title FROM S//item->i{_category(rng)}{_channel(rng)}"
        f'[contains(./title, "{word}") or contains(./description, "{other}")]'
    )


def _same_recording(rng: Random, n: int) -> str:
    return (
        f'FROM S//item->a{_category(rng)}[./link[@rel = "enclosure"]/@href->e][./guid->g] FOLLOWED BY '
        f"{{e = e' AND g != g', {_window(rng, 72)}}} S//item->b[./link[@rel = \"enclosure\"]/@href->e'][./guid->g']"
    )


def _mention(rng: Random, n: int) -> str:
    return (
        f'SELECT <mention of="{{u}}" by="{{c\'}}">{{t}}</mention> FROM '
        f"S//item->a{_channel(rng)}{_category(rng)}[./item_url->u][./title->t][./channel_url->c] JOIN "
        f"{{host(u) = host(h) AND c != c', {_window(rng, 24)}}} S//item->b[./link/@href->h][./channel_url->c']"
    )


def _spreading(rng: Random, n: int) -> str:
    return (
        f"FROM same_story/match->m[./item/title->t] FOLLOWED BY {{t = t', {_window(rng, 168)}}} "
        f"S//item->c{_channel(rng)}[./title->t']"
    )


def _product(rng: Random, n: int) -> str:
    place, window = _channel(rng), _window(rng, 24)
    return (
        f"FROM S//item->a{place}{_category(rng)}[./author->w] FOLLOWED BY {{w = w', {window}}} "
        f"S//item->b{_category(rng)}[./author->w'] FOLLOWED BY {{w' = w'', {window}}} "
        f"S//item->c{_category(rng)}[./author->w'']"
    )


_KINDS = (
    _same_story,
    _same_page,
    _follow_up,
    _prolific,
    _retitled,
    _keyword,
    _same_recording,
    _mention,
    _spreading,
    _product,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "items.jsonl").open("w", encoding="utf-8") as lines:
        for item in items(options.items, options.seed):
            lines.write(json.dumps({"id": item.id, "stream": item.stream, "time": item.t0, "xml": item.xml}) + "\n")
    (options.out / "queries.xscl").write_text(queries(options.queries, options.seed + 1), encoding="utf-8")


if __name__ == "__main__":
    main()
