"""Products with vectors of four weights in one codebook: look-ups of 8 bytes in shared memory."""
