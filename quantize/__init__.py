"""Calibrates a model by a recipe and publishes a checkpoint with a record of how it was made."""

import os

# llm-compressor logs to the terminal from the moment it is imported; a run sends it to its log file.
os.environ.setdefault("LLM_COMPRESSOR_LOG_LEVEL", "ERROR")
