"""`python -m evaluate.limits`: measures this machine's bandwidth and matrix product rates."""

import json
from dataclasses import asdict
from pathlib import Path

from conf.app import run_plain
from conf.errors import bad_input
from conf.files.outputs import check_file

USAGE = "python -m evaluate.limits [FILE]"
HELP = f"""{USAGE}

Measures this machine's memory bandwidth (bytes a second) and matrix products (operations a second).
Prints them as JSON, or writes them to FILE.

  --version  Prints the version.
"""


def main(arguments: list[str]) -> None:
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        raise bad_input(f"{' '.join(arguments)}: write {USAGE}")
    path = Path(arguments[0]).expanduser() if arguments else None
    if path is not None:
        check_file("FILE", path)
    from evaluate.measure.rates.measuring import measure, write

    if path is None:
        print(json.dumps(asdict(measure()), indent=2))
    else:
        write(path)


if __name__ == "__main__":
    run_plain(HELP, main)
