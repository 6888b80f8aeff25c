"""`python -m perdure`."""

from perdure.cli.main import main

main()
