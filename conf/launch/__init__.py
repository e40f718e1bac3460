"""Sweeps whose jobs run in other processes: on this machine's GPUs, on Slurm or on Ray."""
