"""Products of activations and stored weights. Functions of tensors; vLLM is imported inside."""
