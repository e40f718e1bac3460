"""Calibrates a model by a recipe and publishes a checkpoint with a record of how it was made."""

import os
import sys
from pathlib import Path

# Our packages come before a `conf` or `serve.py` in the user's folder.
if sys.path[0] != (root := str(Path(__file__).resolve().parents[1])):
    sys.path.insert(0, root)

# llm-compressor logs to the terminal from its import on; a run sends it to a log file instead.
os.environ.setdefault("LLM_COMPRESSOR_LOG_LEVEL", "ERROR")
