"""Compares the time, memory and layer errors of quantizing here and with llm-compressor."""
