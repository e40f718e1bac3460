"""Calibration: text as batches, the passes through the layers, the solver, resume."""
