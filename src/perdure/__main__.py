"""The command `perdure`, also as `python -m perdure`: Ctrl-C ends it quietly while it is still being loaded, too."""

import sys


def main() -> None:
    """Load the commands and run the one that was asked for."""
    try:
        from perdure.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
