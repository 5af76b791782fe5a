"""Runs `causeway COMMAND`, and `python -m causeway_gateway COMMAND`."""

import sys

from config.local import entry, installer


def main() -> None:
    if sys.argv[1:2] == ["demo"] and not {"-h", "--help"}.intersection(sys.argv):
        installer.ensure_postgres()
    # Django prints its own name for a program that is called `__main__.py`.
    sys.argv[0] = "causeway"
    entry.run(sys.argv)


if __name__ == "__main__":
    main()
