"""What several GPUs would bring: a simulation."""
