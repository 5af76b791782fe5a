"""The runbook of the rotation rotates every secret while requests run, and refuses none."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import requests
from django.contrib.auth.models import User
from django.test import Client

from accounts.models import ApiKey, ByokCredential, KeyDigest
from catalog.models import Provider
from config.local.bootstrap import PROJECT
from tests.support import factories
from tests.support.inference.site import CHAT, Site
from tests.support.markdown import SHELL, Reader, read_blocks
from tests.support.processes import environment, serve

PAGE = PROJECT / "docs" / "rotation.md"
SECRETS = ("SECRET_KEY", "SECRET_KEY_FALLBACKS", "KEY_PEPPERS", "CREDENTIAL_KEYS")


@dataclass
class Traffic:
    """Callers with both kinds of keys, who send one request after the other to every server."""

    site: Site
    addresses: list[str] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[int, str]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def send(self, path: str) -> None:
        tenant, body = self.site.tenant, self.site.chat_body("one two")
        while not self._ended.is_set():
            for address in tuple(self.addresses):
                if path == CHAT:
                    answer = self._request(address, "POST", path, tenant.api_key, json=body)
                else:
                    answer = self._request(address, "GET", path, tenant.management_key)
                if answer.status_code == 200:
                    self.answered[f"{address} {path}"] += 1
                else:
                    self.refused.append((answer.status_code, answer.text))
            time.sleep(0.1)

    def move(self, *addresses: str) -> None:
        """Sends all further requests to these servers; returns when each has answered some."""
        self.addresses = list(addresses)
        before = self.answered.copy()
        for address in addresses:
            for path in (CHAT, "/api/v1/key"):
                name = f"{address} {path}"
                self.site.eventually(
                    lambda name=name: self.refused != [] or self.answered[name] > before[name] + 3
                )
        assert self.refused == []

    @contextmanager
    def run(self) -> Iterator[None]:
        paths = (CHAT, "/api/v1/key")
        self._threads = [threading.Thread(target=self.send, args=(path,)) for path in paths]
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Waits for the answers of the last requests."""
        self._ended.set()
        for thread in self._threads:
            thread.join(30)

    @staticmethod
    def _request(
        address: str, method: str, path: str, key: str, **options: object
    ) -> requests.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return requests.request(method, f"{address}{path}", headers=headers, timeout=30, **options)  # type: ignore[arg-type]


def read_environment(file: Path) -> dict[str, str]:
    """Returns the secrets of an environment file; a missing one is empty, as if it were not set."""
    lines = dict(line.split("=", 1) for line in file.read_text().splitlines())
    return {name: lines.get(name, "") for name in SECRETS}


def test_the_runbook_rotates_every_secret_under_traffic(site: Site) -> None:
    site.publish()
    factories.make_credential(site.tenant, site.provider)
    _, forgotten = ApiKey.objects.create_key(workspace=site.tenant.workspace, name="never used")
    hashes = set(ApiKey.objects.values_list("digest", flat=True))
    operator = Client()
    operator.force_login(User.objects.create_superuser("anna"))
    cookies = {"sessionid": operator.cookies["sessionid"].value}

    def is_signed_in(address: str) -> bool:
        answer = requests.get(
            f"{address}/admin/", cookies=cookies, allow_redirects=False, timeout=30
        )
        # A session that an earlier secret key signed gets another key.
        cookies.update(answer.cookies)
        return answer.status_code == 200

    prepare, rewrite, remove, clear = read_blocks(PAGE, SHELL)
    # Each run is a shell of its own, in which the variable of the first block is not set yet.
    begin = replace(prepare, text=prepare.text.splitlines()[0])
    database = environment()["DATABASE_URL"]
    traffic = Traffic(site)
    with Reader(changes={}, DATABASE_URL=database) as reader:
        file = reader.home / ".config" / "causeway" / "env"
        file.parent.mkdir(parents=True)
        first = {name: os.environ.get(name, "") for name in SECRETS}
        file.write_text("".join(f"{name}={value}\n" for name, value in first.items() if value))
        with traffic.run(), serve(**first) as old:
            traffic.move(old.address)
            assert is_signed_in(old.address)
            reader.run([prepare])
            second = read_environment(file)
            assert second["SECRET_KEY_FALLBACKS"] == first["SECRET_KEY"]
            assert file.stat().st_mode & 0o777 == 0o600
            with serve(**second) as both:
                # Servers with the old and with the new lists answer side by side.
                traffic.move(old.address, both.address)
                traffic.move(both.address)
                assert old.stop()[0] == 0
                assert is_signed_in(both.address)
                output = reader.run([begin, rewrite])[rewrite.line]
                assert "rotated: 2\n" in output
                assert "waiting: 1\n" in output
                reader.run([begin, remove])
                third = read_environment(file)
                assert third["SECRET_KEY_FALLBACKS"] == ""
                with serve(**third) as new:
                    traffic.move(both.address, new.address)
                    traffic.move(new.address)
                    assert both.stop()[0] == 0
                    assert is_signed_in(new.address)
                    output = reader.run([begin, clear])[clear.line]
                    traffic.move(new.address)
                    refused = requests.get(
                        f"{new.address}/api/v1/key",
                        headers={"Authorization": f"Bearer {forgotten.reveal()}"},
                        timeout=30,
                    )
                    traffic.end()
    assert traffic.refused == []
    assert refused.status_code == 401
    assert "no longer listed: 1\n" in output
    for name in ("SECRET_KEY", "KEY_PEPPERS", "CREDENTIAL_KEYS"):
        assert third[name] == second[name].split(",")[0] != first[name]
    assert set(ApiKey.objects.values_list("digest", flat=True)) == hashes
    assert KeyDigest.objects.values("api_key").distinct().count() == len(hashes)
    assert (Provider.objects.count(), ByokCredential.objects.count()) == (1, 1)
