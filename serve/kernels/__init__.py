"""Kernels of our own for vLLM: a plugin that runs quantized linear layers faster."""
