"""The package of an installation; docs/decisions/0051 says why it has no more modules.

The wheel has the applications below `causeway_gateway/_apps`, so that their names (`config`,
`billing`, …) never collide with those of other packages. This module puts that folder first on the
path. A clone has no such folder: there, the applications are on the path already.
"""

import sys
from pathlib import Path

_APPS = Path(__file__).resolve().parent / "_apps"
if _APPS.is_dir() and str(_APPS) not in sys.path:
    sys.path.insert(0, str(_APPS))
