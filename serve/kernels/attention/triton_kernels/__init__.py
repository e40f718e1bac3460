"""Kernels of attention, in Triton: import them only where Triton is installed."""
