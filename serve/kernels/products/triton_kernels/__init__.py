"""Kernels in Triton's language. Only these modules import Triton."""
