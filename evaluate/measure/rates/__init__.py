"""What this machine reads and multiplies in a second."""
