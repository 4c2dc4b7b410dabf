"""The directory of the project, and the files that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
REAL_FEEDS = ROOT.parent / "shared" / "data" / "feeds" / "drop"
"""Versions of real feeds, in the layout of a crawl; not part of the project, so that it may be missing."""
