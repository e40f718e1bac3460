"""`python -m evaluate.limits`: measures this machine's bandwidth and matrix product rates."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from conf.app import report
from conf.entry import answer_flags
from conf.errors import bad_input
from conf.files.outputs import check_file

USAGE = "python -m evaluate.limits [FILE]"
HELP = f"""{USAGE}

Measures this machine's memory bandwidth (bytes a second) and matrix products (operations a second).
Prints them as JSON, or writes them to FILE.

  --version  Prints the version.
"""


def main() -> None:
    answer_flags(sys.argv[1:], HELP)
    if sys.argv[1:2] and (len(sys.argv) > 2 or sys.argv[1].startswith("-")):
        sys.exit(report(bad_input(f"{' '.join(sys.argv[1:])}: write {USAGE}")))
    try:
        _measure(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    except Exception as error:
        sys.exit(report(error))


def _measure(path: Path | None) -> None:
    if path is not None:
        check_file("FILE", path)
    from evaluate.measure.rates.measuring import measure, write

    if path is None:
        print(json.dumps(asdict(measure()), indent=2))
    else:
        write(path)


if __name__ == "__main__":
    main()
