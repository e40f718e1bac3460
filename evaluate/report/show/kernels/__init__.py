"""Kernels that were timed alone: records, table and heat map."""
