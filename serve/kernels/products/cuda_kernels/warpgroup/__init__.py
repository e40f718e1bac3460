"""Kernels whose warps multiply in groups of four (`wgmma`, on Hopper only)."""
