"""Feeds whose entries try to break pages: markup, scripts, endless words, right-to-left text, control characters."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

SCRIPT = "<script>document.title='broken'</script><img src=x onerror=alert(1)>"

TITLES = {
    "markup": f'"><b>bold</b>{SCRIPT}</mark></title></a>',
    "template": "{{ 7 * 7 }} {% raw %} ${7*7} &lt;i&gt; &amp;amp;",
    "endless": "Donaudampfschifffahrtsgesellschaft" * 40,
    "long": "A rather long title that goes on " * 60,
    "hebrew": "כותרת מימין לשמאל (עם סוגריים) 12:30 – חדשות",
    "arabic": "عنوان من اليمين إلى اليسار: 50% من القراء",
    "override": "invoice\u202egnp.exe and \u2066isolated",
    "marks": "Z" + "\u0337\u0321\u0352\u0330" * 60 + "algo",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 " * 20,
    "blank": "\u3164\u200b",
    "cjk": "日本語の見出しは空白を含まないので折り返しが必要です" * 6,
}
"""Titles by what they try."""

QUERY = """\
FROM S//item->a[./title->t1][./channel_url->c1]
  JOIN UNORDERED { t1 = t2 AND c1 != c2, 48 h }
  S//item->b[./title->t2][./channel_url->c2]
PUBLISH hostile;
SELECT a/title AS heading, a/content AS body FROM S//item->a[./title] PUBLISH all_of_them
"""


def write_hostile_feeds(directory: Path, titles: Iterable[str] = TITLES.values()) -> None:
    """Writes two feeds whose entries have the same titles on the same day, so that each title matches itself."""
    directory.mkdir(parents=True, exist_ok=True)
    for site in ("one", "two"):
        entries = "".join(_entry(site, number, title) for number, title in enumerate(titles))
        channel = f"<title>{escape(SCRIPT)} {site}</title><link>https://{site}.example/</link>"
        (directory / f"{site}.rss").write_text(
            f'<?xml version="1.0" encoding="utf-8"?>\n<rss version="2.0"><channel>{channel}{entries}</channel></rss>',
            "utf-8",
        )


def _entry(site: str, number: int, title: str) -> str:
    link = "javascript:alert(1)" if number % 3 == 2 else f"https://{site}.example/{number}?a=%22&amp;b='"
    return (
        # Feeds escape their titles once as text and once as HTML.
        f"<item><title>{escape(escape(title))}</title><link>{link}</link><guid isPermaLink='false'>{number}</guid>"
        f"<author>{escape(SCRIPT)}</author><category>{escape(title)}</category>"
        f"<description>{escape('<p onclick=alert(1)>Text</p>' + SCRIPT)}</description>"
        "<pubDate>Wed, 06 May 2026 10:00:00 GMT</pubDate></item>"
    )
