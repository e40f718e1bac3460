"""Several processes that calibrate one model together, one for each GPU."""
