"""`python -m conf.launch.slurm_node -u -m MODULE FOLDER`: submitit in a job, without numpy.

The arguments are those that submitit gives to Python. submitit imports numpy before it reads a
pickle, if it can. Ours needs none, and the import takes 0.15 to 0.2 s. The job itself runs in a
process of its own, where numpy can be imported.
"""

import runpy
import sys

from conf.entry import answer_flags


def main() -> None:
    answer_flags(sys.argv[1:], __doc__ or "")
    *_, module, folder = sys.argv
    sys.argv = [module, folder]
    sys.modules["numpy"] = None  # type: ignore[assignment]  # Python's way to refuse an import
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
