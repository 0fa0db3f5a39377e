"""``penstock``, and ``python -m penstock``."""

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C is no traceback either while that is being loaded."""
    try:
        from penstock.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
