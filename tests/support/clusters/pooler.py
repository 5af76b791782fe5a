"""PgBouncer by the published file, before the HAProxy of a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Self

from tests.support.clusters.ports import PASSWORD
from tests.support.clusters.programs import Program, give_to_account
from tests.support.machine.waiting import wait_until

_FILE: Final = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "ha" / "pgbouncer.ini"
_PROGRAM: Final = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin") or "pgbouncer"


class ClusterPooler:
    """A PgBouncer that a drill may end."""

    def __init__(self, directory: Path, *, port: int, database: int) -> None:
        self._directory, self._port = directory / "pooler", port
        self._directory.mkdir()
        users = self._directory / "userlist.txt"
        users.write_text(f'"causeway" "{PASSWORD}"\n')
        text = _FILE.read_text()
        for old, new in (
            ("port=5000", f"port={database}"),
            ("listen_port = 6432", f"listen_port = {port}\nunix_socket_dir ="),
            ("/etc/pgbouncer/userlist.txt", str(users)),
        ):
            assert old in text, old
            text = text.replace(old, new)
        self._file = self._directory / "pgbouncer.ini"
        self._file.write_text(text)
        give_to_account(self._directory)
        self._program: Program | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        program = Program("pgbouncer", [_PROGRAM, str(self._file)], self._directory, {})
        self._program = program
        wait_until(lambda: program.is_listening(self._port), "PgBouncer does not start")

    def kill(self) -> None:
        if self._program is not None:
            self._program.process.kill()
            self._program.process.wait()
