"""A benchmark of single kernels, beside torch's product in bf16 and the limit of the memory."""
