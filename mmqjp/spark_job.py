"""`mmqjp stream` as an application for spark-submit, with the same options. It uses the session of spark-submit, for
example: `spark-submit --master spark://host:7077 .../mmqjp/spark_job.py --source drops/ --state state/ --trigger 10s`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mmqjp.cli import main as command_line


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the service and ends the process; arguments as for `mmqjp stream`."""
    given = sys.argv[1:] if arguments is None else arguments
    command_line(["stream", "--engine", "spark", *given], prog_name="mmqjp")


if __name__ == "__main__":
    main()
