"""Writes fetched feeds into a drop directory; `feeds.drop_directory` says what it looks like."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from common.whole_file import drafts, sync_directory, write_whole
from feeds.drop_directory import Sidecar, drop_stem, read_stem, sidecar_json
from feeds.fetch.archive import Capture
from feeds.kinds import FEED_SUFFIX, SIDECAR_SUFFIX


class DropArchive:
    """An archive with one file per version. The directory itself tells what it holds, so it needs no mark."""

    mark = None

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for folder in directory.iterdir():
            for draft in drafts(folder):
                if read_stem(draft.name.split(".")[1]):  # of a fetch that was killed
                    draft.unlink()

    def newest(self, source: str) -> str | None:
        try:
            names = list((self._directory / source).iterdir())
        except FileNotFoundError:
            return None
        versions = [read_stem(path.stem) for path in names if path.suffix == FEED_SUFFIX]
        return max(filter(None, versions), default=(0, None))[1]

    def keep(self, capture: Capture) -> None:
        directory = self._directory / capture.source
        if not directory.is_dir():
            directory.mkdir(self._directory.stat().st_mode & 0o777)
            sync_directory(self._directory)
        sidecar = Sidecar(
            url=capture.url,
            fetched=capture.fetched,
            final_url=capture.final_url,
            status=capture.status,
            etag=capture.header("ETag"),
            last_modified=capture.header("Last-Modified"),
            content_type=capture.header("Content-Type"),
            sha256=capture.sha256,
            title=capture.title,
            folders=capture.folders,
        )
        stem = drop_stem(capture.fetched, capture.sha256)
        # In this order: a feed is never there without what is known of it.
        write_whole(directory / f"{stem}{SIDECAR_SUFFIX}", sidecar_json(sidecar))
        write_whole(directory / f"{stem}{FEED_SUFFIX}", capture.body)

    def met_again(self, capture: Capture, since: int) -> None:
        """Nothing: the directory has files for versions only."""

    def finish(self) -> None:
        """Nothing: each version is readable at once."""

    def close(self) -> None:
        """Nothing: no file stays open."""


def remove_read(directory: Path, read: Container[str], before: int) -> None:
    """Removes the versions that were fetched before a time (microseconds) and are among `read`, by their names below
    the directory, with their sidecars. The newest version of each feed stays."""
    for source in directory.iterdir() if directory.is_dir() else ():
        paths = source.glob(f"*{FEED_SUFFIX}") if source.is_dir() else ()
        versions = sorted((*stem, path) for path in paths if (stem := read_stem(path.stem)) is not None)
        for fetched, _, path in versions[:-1]:
            if fetched < before and f"{source.name}/{path.name}" in read:
                # In this order: a sidecar that nobody needs would stay for ever.
                path.with_suffix(SIDECAR_SUFFIX).unlink(missing_ok=True)
                path.unlink(missing_ok=True)
