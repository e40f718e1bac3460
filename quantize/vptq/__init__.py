"""VPTQ in plain torch: exact and slow. Engines and checks without a kernel for it use this."""
