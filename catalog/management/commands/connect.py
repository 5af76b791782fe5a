from __future__ import annotations

import json
import shlex
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import CommandParser

from catalog.connecting.asking import FIELDS, ConnectRefused
from catalog.connecting.connect import ConnectWish, Inspection, StoredConnection
from config.bulk.commands import JSONCommand
from config.bulk.files import read_text, refuse
from config.bulk.problems import ImportRefused
from config.credentials import NotACredential, Secret, parse_credential
from endpoints.connecting import connect


class Command(JSONCommand):
    help = "Connects an OpenAI-compatible server by URL, or a provider of the bundle by name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", metavar="URL|PROVIDER")
        keys = parser.add_mutually_exclusive_group()
        keys.add_argument("--key", help="the key; other users of this machine may see it")
        keys.add_argument(
            "--key-file", metavar="FILE", help="a file with the key; - is standard input"
        )
        parser.add_argument("--ca", metavar="FILE", help="the authority of its certificate, in PEM")
        parser.add_argument(
            "--allow",
            action="store_true",
            help="allow its own address, for it alone",
        )
        parser.add_argument(
            "--organization",
            type=UUID,
            metavar="ID",
            help="connect it to this organization alone: a private provider and endpoints",
        )
        parser.add_argument("--models", metavar="A,B", help="connect these models alone")
        parser.add_argument("--dry-run", action="store_true", help="ask and try, and store nothing")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        wish = ConnectWish(
            options["target"],
            secret=_read_key(options),
            authorities="" if options["ca"] is None else read_text(options["ca"]),
            allows=options["allow"],
            models=[each.strip() for each in (options["models"] or "").split(",") if each.strip()],
        )
        try:
            found, connection = connect(wish, options["organization"], dry_run=options["dry_run"])
        except (ConnectRefused, ImportRefused) as exc:
            refuse(str(exc))
        for note in found.notes:
            self.note(note)
        self._report(found, connection, options)

    def _report(
        self, found: Inspection, connection: StoredConnection, options: dict[str, Any]
    ) -> None:
        test, models = found.test, connection.models
        curl = None
        if test is not None and connection.tested is not None:
            curl = _write_curl(connection.tested, test.output)
        if options["json"]:
            tried = {"status": None, "text": "", "milliseconds": 0}
            if test is not None:
                tried = {
                    "status": test.status, "text": test.text, "milliseconds": test.milliseconds,
                }  # fmt: skip
            endpoints = [] if options["dry_run"] else list(map(str, connection.endpoints))
            result = {
                "provider": connection.provider,
                "models": models,
                "endpoints": endpoints,
                "network_allowed": found.network,
                "test": tried,
                "curl": curl,
            }
            self.report(result, as_json=True)
            return
        done = "Would connect" if options["dry_run"] else "Connected"
        count = f"{len(models)} model{'' if len(models) == 1 else 's'}"
        self.stdout.write(f"{done} {connection.provider} with {count}:")
        for slug in models:
            self.stdout.write(f"  {slug}")
        if found.network is not None:
            self.stdout.write(f"Allowed to it alone: {', '.join(found.networks)}")
        if test is not None:
            self.stdout.write(str(test))
        if curl is not None and not options["dry_run"]:
            self.stdout.write(f"Call it with a key of an organization:\n{curl}")


def _read_key(options: dict[str, Any]) -> Secret | None:
    text = options["key"]
    if options["key_file"] is not None:
        text = read_text(options["key_file"])
    if text is None:
        return None
    if not text.strip():
        refuse("The key is empty: is the variable set, and the file written?")
    try:
        return parse_credential(text.strip())
    except NotACredential as exc:
        refuse(f"The key: {exc} A server that asks for none is connected without.")


def _write_curl(model: str, output: str) -> str:
    operation, fields = FIELDS[output]
    if output == "text":
        fields = {"messages": [{"role": "user", "content": "Hello"}]}
    # Behind a proxy the port may be nobody's but the proxy's.
    public = (each for each in settings.CSRF_TRUSTED_ORIGINS if "*" not in each)
    origin = next(public, "http://127.0.0.1:8000")
    return (
        f"curl {origin.rstrip('/')}/api/v1/{operation.value} -H "
        '"Authorization: Bearer $CAUSEWAY_API_KEY" -H "Content-Type: application/json" '
        f"-d {shlex.quote(json.dumps({'model': model, **fields}))}"
    )
