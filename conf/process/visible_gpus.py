"""The variable that says which GPUs a process sees, for modules that must import fast."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
