"""Runs a command that ends with the process that started it, with everything that it started.

Called by its path as `guard.py LIFE_LINE COMMAND ...`, with the standard library alone. The life
line is a pipe whose other end only the starter holds: it closes when the starter is gone, however
it ended. A second process waits for that and kills the group of the command. The command itself
replaces this process, so that its exit status and process id are those that the starter sees.
"""

import os
import signal
import sys

MOST_DESCRIPTORS = 4096


def main() -> None:
    life_line, command = int(sys.argv[1]), sys.argv[2:]
    if os.fork():
        os.close(life_line)
        os.execvp(command[0], command)
    # Pipes that the command talks through must close with the command.
    os.closerange(0, life_line)
    os.closerange(life_line + 1, MOST_DESCRIPTORS)
    while os.read(life_line, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
