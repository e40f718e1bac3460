"""The section on our kernels: what they gain, and which product runs for how many tokens."""
