"""The pages that visitors of the benchmark ask for, and a check that they show what the store has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from random import Random
from urllib.parse import urlencode, urlsplit

from bench.serve_visitors import Request, get
from mmqjp.engine import Session

SAMPLE = 60
"""The number of queries whose matches and feeds are asked for."""

COUNT = "SELECT count(*) AS answers, max(t1) AS newest FROM answers"


class Pages:
    """The pages of a site whose store has queries of these names."""

    def __init__(self, url: str, state: Path, names: Sequence[str], seed: int = 5) -> None:
        self.url, self.token = url, (state / "secrets" / "token").read_text().strip()
        self._names, self._rng = names, Random(seed)
        self._get = get(url, self.token)
        self._sample = sorted(self._rng.sample(names, min(SAMPLE, len(names))))

    def check(self, state: Path) -> None:
        """Raises AssertionError unless the pages show what a store in `state` has."""
        shown = {name: self._get(f"/api/v1/queries/{name}/outputs").json()["outputs"] for name in self._sample}
        with Session("duckdb", state=state) as engine:
            listed = ", ".join(f"'{name}'" for name in self._sample)
            rows = engine.sql(
                f"SELECT query, id FROM outputs WHERE query IN ({listed}) ORDER BY seq", trusted=True
            ).to_pylist()
        kept: dict[str, list[str]] = {name: [] for name in self._sample}
        for row in rows:
            kept[row["query"]].append(row["id"])
        for name, outputs in shown.items():
            ids = [output["id"] for output in outputs]
            assert set(ids) == set(kept[name][-len(ids) or len(kept[name]) :]), f"/q/{name} shows other outputs"
            total = self._get(f"/api/v1/queries/{name}").json()["row"]["total"]
            assert total == len(kept[name]), f"/q/{name} counts {total} outputs of {len(kept[name])}"

    def requests(self) -> Iterator[Request]:
        """Asks for the addresses of matches and feeds, and returns requests without an end: each kind of page in turn,
        some more often."""
        matches = [path for name in self._sample for path in self._matches(name)]
        feeds = [urlsplit(self._get(f"/api/v1/queries/{name}/feed").json()["url"]).path for name in self._sample]
        return self._requests(matches, feeds)

    def _requests(self, matches: Sequence[str], feeds: Sequence[str]) -> Iterator[Request]:
        rng = self._rng
        while True:
            for _ in range(3):
                yield Request("/q/NAME", f"/q/{rng.choice(self._names)}")
                yield Request("/o/ID", rng.choice(matches))
                yield Request("/f/KEY/NAME.atom", rng.choice(feeds))
            yield Request("/", "/")
            yield Request("/?search=", f"/?{urlencode({'search': rng.choice(self._names)})}")
            yield Request("/live", "/live")
            yield Request("/new", "/new")
            yield Request("/feeds", "/feeds")
            yield Request("/engine", "/engine")
            yield Request("/sinks", "/sinks")
            yield Request("/sql", f"/sql?{urlencode({'sql': COUNT})}")

    def _matches(self, name: str) -> list[str]:
        """The addresses of the matches that the page of a query has."""
        return [unescape(found) for found in re.findall(r'"(/o/[^"]+)"', self._get(f"/q/{name}").text)]
