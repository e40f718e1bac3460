"""GPTQ and SparseGPT: products of inputs, and the weights that solve for them."""
