"""`python -m quantline COMMAND ...`: the same as the command `quantline`."""

from quantline import main

if __name__ == "__main__":
    main()
