"""Where activations and weights are during calibration, and how layers reach the disk."""
