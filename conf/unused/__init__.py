"""Options that have no effect beside the other options of a command: found, and said or refused."""
