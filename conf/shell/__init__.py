"""What helps at the shell: lists of choices, and completion."""
