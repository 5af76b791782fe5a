"""A pytest plugin, loaded before any settings are: tests run on a PostgreSQL of their own.

The controlling process starts a throw-away server and makes the certificates of the simulated
upstream; its workers inherit the addresses. A database that the environment names is used instead.
"""

from __future__ import annotations

import atexit
import base64
import os
import secrets
import shutil
import socket
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from config.local import postgres
from config.local.certificates import ensure_certificates
from tests.support.database.kept import MONTH, find_cluster

AZURE_HOST = "contoso.openai.azure.com"
BEDROCK_HOST = "bedrock-runtime.us-east-1.amazonaws.com"
FOUNDRY_HOST = "contoso.services.ai.azure.com"
VERTEX_HOST = "us-central1-aiplatform.googleapis.com"
CLOUD_HOSTS = (AZURE_HOST, BEDROCK_HOST, FOUNDRY_HOST, VERTEX_HOST)

# The variable that says that the server of the database is the tests' own.
OWN_SERVER = "CAUSEWAY_TEST_OWN_SERVER"

# The tests start hundreds of processes. Without its bytecode, each would compile 2,600 modules,
# which costs 2.5 s of CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The settings must know where the simulated clouds are before they run. A socket that never listens
# keeps the port for this process.
_reserved = socket.socket()
_reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
_reserved.bind(("127.0.0.1", 0))
atexit.register(_reserved.close)
CLOUD_PORT: int = _reserved.getsockname()[1]
os.environ["UPSTREAM_HOSTS"] = ",".join(f"{name}=127.0.0.1:{CLOUD_PORT}" for name in CLOUD_HOSTS)

if "CAUSEWAY_TEST_DIR" not in os.environ:
    directory = tempfile.mkdtemp(prefix="causeway-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ["CAUSEWAY_TEST_DIR"] = directory
    os.environ[MONTH] = f"{datetime.now(UTC):%Y-%m}"
    os.environ["SECRET_KEY"] = secrets.token_urlsafe(48)
    os.environ["CREDENTIAL_KEYS"] = base64.b64encode(secrets.token_bytes(32)).decode()
    os.environ["UPSTREAM_ALLOWED_NETWORKS"] = "127.0.0.0/8"
    os.environ["UPSTREAM_CA_BUNDLE"] = str(ensure_certificates(Path(directory) / "tls").ca)
    # Most tests read no lines of requests; those that do switch them on.
    os.environ["ACCESS_LOG"] = "off"
    os.environ["VALIDATION_PROBES_PARAMETERS"] = "off"
    os.environ["METRICS_TOKEN"] = secrets.token_urlsafe(16)
    os.environ["ALLOWED_HOSTS"] = "127.0.0.1,localhost,testserver"
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = postgres.throwaway(copied=find_cluster())
        os.environ[OWN_SERVER] = "yes"
