"""Measures checkpoints and the original, in the engine that will serve them."""

import sys
from pathlib import Path

# Our packages come before a `conf` or `serve.py` in the user's folder.
if sys.path[0] != (root := str(Path(__file__).resolve().parents[1])):
    sys.path.insert(0, root)
