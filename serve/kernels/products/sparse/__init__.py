"""Products with 2:4 sparse weights: cuSPARSELt and a Triton kernel."""
