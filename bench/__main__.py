"""Runs the benchmark of the whole path: `python -m bench [--engine duckdb|spark] [--queries N,N] [--json FILE]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.whole_path import Case, measure, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="measures the whole path")
    parser.add_argument("--engine", choices=("duckdb", "spark"), default="duckdb")
    parser.add_argument("--queries", default="10,100,1000,5000", help="numbers of queries, separated by commas")
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--sample", type=int, default=100, help="number of queries that are run alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [Case(int(count), options.items, options.sample) for count in options.queries.split(",")]
    report([measure(case, options.engine) for case in cases], options.json)


if __name__ == "__main__":
    main()
