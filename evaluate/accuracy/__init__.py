"""Accuracy against the original: divergence, gate, sensitivity of layers, tasks."""
