#!/usr/bin/env python3
"""Django's entry; installs the project first if it is not installed."""

import sys

from config.local import bootstrap, entry

if __name__ == "__main__":
    bootstrap.ensure()
    entry.run(sys.argv)
