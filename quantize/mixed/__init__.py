"""Mixed precision: measures what each layer loses, and chooses a format for each under a limit."""
