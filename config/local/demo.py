"""Sets the environment of a demo, before any settings are read.

Standard library only.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

SIMULATOR_DIR: Final = "simulator"


def prepare_environment(arguments: list[str], default: Path) -> None:
    """Points this process and the server that it starts at the demo's own data directory.

    A demo always uses its own database, and may reach the simulated provider on loopback.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data-dir", default=os.environ.get("DATA_DIR", str(default)))
    data_dir = Path(parser.parse_known_args(arguments)[0].data_dir).expanduser().absolute()
    variables = {
        "DATABASE_URL": "embedded",
        "DATA_DIR": str(data_dir),
        "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
        "UPSTREAM_CA_BUNDLE": str(data_dir / SIMULATOR_DIR / "ca.pem"),
    }
    for name, value in variables.items():
        # A file would come before it.
        os.environ.pop(f"{name}_FILE", None)
        os.environ[name] = value
