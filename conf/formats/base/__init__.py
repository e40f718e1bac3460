"""What the files of stored formats have in common: their interface, tensors and refusals."""
