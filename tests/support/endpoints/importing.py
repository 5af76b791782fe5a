"""Files of private endpoints and their import."""

from __future__ import annotations

import io
import json
from typing import Any

from config.bulk.report import Report
from config.bulk.rows import read_lines
from endpoints import imports
from tests.support.factories import Tenant

KIND = "private_endpoints"
PRICING = {"prompt": "0.0000005", "completion": "0.0000015"}


def encoded(*rows: Any) -> bytes:
    """Returns the rows as JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def load(tenant: Tenant, *rows: Any, **options: Any) -> Report:
    """Imports rows into the tenant's organization, with options of ``imports.apply``."""
    return load_bytes(tenant, encoded(*rows), **options)


def load_bytes(tenant: Tenant, data: bytes, **options: Any) -> Report:
    """Imports a file into the tenant's organization, with options of ``imports.apply``."""
    return imports.apply(tenant.organization.pk, read_lines(io.BytesIO(data)), **options)
