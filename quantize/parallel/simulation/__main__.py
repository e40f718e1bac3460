"""`python -m quantize.parallel.simulation`: what several H200 would bring. A simulation."""

from conf.app import run_plain
from conf.errors import bad_input

USAGE = "python -m quantize.parallel.simulation"
HELP = f"""{USAGE}

Prints what several H200 would bring, as Markdown tables: calibrating a large model, and a sweep.
Computed from figures of one H200; docs/scaling.md explains them. Takes no options.

  --help, -h  This help.
  --version   Quantline's version."""


def main(arguments: list[str]) -> None:
    if arguments:
        raise bad_input(f"{' '.join(arguments)}: write {USAGE}")
    from quantize.parallel.simulation.tables import show

    show()


if __name__ == "__main__":
    run_plain(HELP, main)
