"""The memory bandwidth and matrix product rates of this machine."""
