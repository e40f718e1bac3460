"""Calibrates a model by a recipe and publishes a checkpoint with a record of how it was made."""

import os

# llm-compressor logs to the terminal from its import on; a run sends it to a log file instead.
os.environ.setdefault("LLM_COMPRESSOR_LOG_LEVEL", "ERROR")
