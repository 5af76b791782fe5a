import signal
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config.local.certificates import ensure_certificates
from config.local.upstream import MODELS, serve_upstream


class Command(BaseCommand):
    """Serves the simulated provider until it is interrupted; needs no database."""

    help = "Serves a simulated OpenAI-compatible provider with an echo, a slow and a failing model."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8443, help="0 for a free port")
        parser.add_argument(
            "--cert-dir", type=Path, default=Path(".data/simulator"), metavar="DIR",
            help="the directory of the authority (DIR/ca.pem) and the certificates",
        )  # fmt: skip
        parser.add_argument("--http", action="store_true", help="plain HTTP instead of TLS")
        parser.add_argument("--list", action="store_true", help="print the models and exit")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"]:
            for name, summary in MODELS.items():
                self.stdout.write(f"{name:11}  {summary}")
            return
        # A shell lets what it starts in the background ignore SIGINT.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        try:
            certificates = None if options["http"] else ensure_certificates(options["cert_dir"])
            with serve_upstream(certificates, options["host"], options["port"]) as (base_url, _):
                trust = f"--cacert {certificates.ca} " if certificates else ""
                self.stdout.write(f"Base URL:  {base_url}")
                if certificates:
                    self.stdout.write(f"CA:        {certificates.ca}")
                self.stdout.write(
                    f"Try:       curl {trust}{base_url}/chat/completions"
                    " -H 'Authorization: Bearer any-key' -H 'Content-Type: application/json' -d '"
                    '{"model":"sim-echo","messages":[{"role":"user","content":"Hello there"}]}'
                    "'"
                )
                self.stdout.write("Models are listed with --list. Ctrl-C ends it.")
                self.stdout.flush()
                signal.pause()
        except KeyboardInterrupt:
            return
        except OSError as exc:
            raise CommandError(f"Cannot serve: {exc.strerror or exc}.") from None
