"""vLLM's own kernels as products, to be measured and planned beside ours."""
