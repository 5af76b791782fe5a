import asyncio
import contextlib
import signal
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config.local.simulator.behaviours import BEHAVIOURS
from config.local.simulator.certificates import ensure_certificates
from config.local.simulator.pictures import PICTURES
from config.local.simulator.server import Simulator


class Command(BaseCommand):
    """Serves the scripted upstream provider until it is interrupted; needs no database."""

    help = "Serves a scripted OpenAI-compatible upstream; the model name chooses its behaviour."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8443, help="0 for a free port")
        parser.add_argument(
            "--cert-dir", type=Path, default=Path(".data/simulator"), metavar="DIR",
            help="the directory of the authority (DIR/ca.pem) and the certificates",
        )  # fmt: skip
        parser.add_argument("--http", action="store_true", help="plain HTTP, for benchmarks")
        parser.add_argument("--list", action="store_true", help="print the behaviours and exit")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"]:
            behaviours = PICTURES | BEHAVIOURS
            width = max(map(len, behaviours))
            for name, (summary, _) in behaviours.items():
                self.stdout.write(f"{name:{width}}  {summary}")
            return
        try:
            certificates = None if options["http"] else ensure_certificates(options["cert_dir"])
            simulator = Simulator(
                certificates, options["host"], options["port"], tls=not options["http"]
            )
            with contextlib.suppress(KeyboardInterrupt), asyncio.Runner() as runner:
                runner.run(self._serve(simulator))
        except OSError as exc:
            raise CommandError(f"Cannot serve: {exc.strerror or exc}.") from None

    async def _serve(self, simulator: Simulator) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        await simulator.start()
        certificates = simulator.certificates
        trust = f"--cacert {certificates.ca} " if certificates else ""
        self.stdout.write(f"Base URL:  {simulator.base_url}")
        if certificates:
            self.stdout.write(f"CA:        {certificates.ca}")
        self.stdout.write(
            f"Try:       curl {trust}{simulator.base_url}/chat/completions"
            " -H 'Authorization: Bearer any-key' -H 'Content-Type: application/json'"
            """ -d '{"model":"sim-echo","messages":[{"role":"user","content":"Hello there"}]}'"""
        )
        self.stdout.write("Behaviours are listed with --list. Ctrl-C ends it.")
        self.stdout.flush()
        try:
            await stopped.wait()
        finally:
            await simulator.stop()
