"""vLLM on this machine: its options, its process, its end, and a client of its server."""
