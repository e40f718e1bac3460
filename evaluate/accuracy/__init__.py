"""Accuracy compared with the original: divergence, gate, layer sensitivity, tasks."""
