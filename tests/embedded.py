"""A pytest plugin, loaded before any settings are: tests run on a PostgreSQL of their own.

The controlling process starts a throw-away server; its workers inherit the address. A database that
the environment names is used instead.
"""

from __future__ import annotations

import base64
import os
import secrets

from config import postgres

if not os.environ.get("DATABASE_URL"):
    os.environ["DATABASE_URL"] = postgres.throwaway()
os.environ.setdefault("SECRET_KEY", secrets.token_urlsafe(48))
os.environ.setdefault("CREDENTIAL_KEYS", base64.b64encode(secrets.token_bytes(32)).decode())
