"""Compares our load generator with `vllm bench serve` on one server."""
