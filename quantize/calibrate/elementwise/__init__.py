"""Norms, rotary positions and gated activations of calibration passes, each as one GPU kernel."""
