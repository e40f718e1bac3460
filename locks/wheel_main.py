"""`python -m quantline COMMAND ...` from a wheel, in which this is `quantline/__main__.py`."""

from quantline import main

main()
