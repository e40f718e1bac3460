"""accuracy=lm_eval: the harness's tasks, original and checkpoints compared by question."""
