"""Rounding of activations by token: ops of ours, and the pass that fuses what comes before."""
