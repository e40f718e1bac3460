"""Weights in codebooks (VPTQ) in vLLM, which has no format of that name of its own."""
