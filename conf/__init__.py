"""Everything known before a run: typed options, config groups, model and hardware facts, errors.

Nothing here imports torch, so that `--help` and errors about options appear at once.
"""

import sys
from pathlib import Path

VERSION = "0.1.0"
ROOT = Path(__file__).resolve().parents[1]  # the checkout, or the package of an installed wheel

# Our packages come before a `conf` or `serve.py` in the user's folder.
if sys.path[0] != str(ROOT):
    sys.path.insert(0, str(ROOT))
