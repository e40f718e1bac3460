"""`quantline COMMAND ...`: every command under one name.

In the repository this file lies beside conf/, quantize/, evaluate/, serve/ and recipes/. In a wheel
it is `quantline/__init__.py`, and the five lie in the same folder. Their names are taken elsewhere
(Hugging Face's `evaluate`, a `conf` in the user's folder), so that they can be imported only in the
processes of a command.
"""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> None:
    """Runs the command that the first argument names, as `python -m MODULE` does."""
    if sys.path[0] != str(ROOT):
        sys.path.insert(0, str(ROOT))
    from conf.entry import chosen_module

    module = chosen_module(sys.argv[1:])
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
