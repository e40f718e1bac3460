"""Runs a command that is killed, with all its children, when the process that started it ends.

Called by its path as `guard.py LIFE_LINE COMMAND ...`; uses the standard library alone. The life
line is a pipe whose other end only the parent holds: it closes when the parent ends for any reason.
A second process waits for that and kills the command's process group. The command itself replaces
this process, so that the parent sees its exit status and process id.
"""

import os
import signal
import sys

MOST_DESCRIPTORS = 4096


def main() -> None:
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return
    life_line, command = int(sys.argv[1]), sys.argv[2:]
    if os.fork():
        os.close(life_line)
        os.execvp(command[0], command)
    kill_group_after(life_line)


def kill_group_after(life_line: int) -> None:
    """Waits for the end of the life line, and kills this process's group."""
    # Pipes that the command talks through must close with the command.
    os.closerange(0, life_line)
    os.closerange(life_line + 1, MOST_DESCRIPTORS)
    while os.read(life_line, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
