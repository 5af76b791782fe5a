"""The access log: one line for each request, without secrets, and never in the way of requests."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.exceptions import ImproperlyConfigured

from accounts.models import ApiKey
from config.api.errors import InvalidRequest
from config.telemetry.access_log import AccessEntry, AccessLog
from inference.models import Generation
from tests.support.bulkheads.counters import read_counter, sample
from tests.support.inference.site import CHAT, Site
from tests.support.processes import serve
from tests.support.settings import read_settings

DROPPED = "causeway_telemetry_dropped_total"
WORDS = "words-of-the-prompt"


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def entry(number: int = 0) -> AccessEntry:
    return AccessEntry(1_795_424_400.0, "GET", f"/{number}", 200)


def dropped() -> float:
    return sample(DROPPED, signal="access_log")


def test_each_request_is_one_line_without_secrets(site: Site, tmp_path: Path) -> None:
    site.publish()
    path = tmp_path / "access.log"
    with serve("--workers", "2", ACCESS_LOG=str(path)) as served:
        site.server = served.address
        stream = site.post(site.chat_body(WORDS, stream=True), stream=True)
        assert stream.text.endswith("[DONE]\n\n")
        refused = requests.post(
            f"{served.address}{CHAT}?key=sk-cw-secret-of-the-query", json={}, timeout=60,
            headers={"Authorization": "Bearer sk-cw-nobodys-key-0123456789"},
        )  # fmt: skip
        listed = requests.get(
            f"{served.address}/api/v1/keys", timeout=60,
            headers={"Authorization": f"Bearer {site.tenant.management_key}"},
        )  # fmt: skip
        assert (refused.status_code, listed.status_code) == (401, 200)
        # Whoever waits for the server asks for its health before.
        site.eventually(
            lambda: len([each for each in read_lines(path) if each["path"] != "/healthz"]) == 3
        )
        assert served.stop()[0] == 0
    text = path.read_text()
    for secret in (WORDS, site.tenant.api_key, site.tenant.management_key, "secret-of-the-query"):
        assert secret not in text
    row = Generation.objects.get()
    lines = {line["path"]: line for line in read_lines(path) if line["status"] == 200}
    chat, keys = lines[CHAT], lines["/api/v1/keys"]
    key = ApiKey.objects.get(pk=row.api_key_id)
    assert chat["organization"] == keys["organization"] == str(row.organization_id)
    assert len(chat["key"]) == 12
    assert key.digest.startswith(chat["key"])
    assert (chat["generation_id"], chat["model"]) == (row.pk, site.model.slug)
    assert (chat["provider"], chat["method"]) == (site.provider.slug, "POST")
    assert chat["bytes"] == len(stream.content)
    assert chat["request_id"] == stream.headers["X-Request-Id"]
    assert 0 < chat["first_byte_ms"] <= chat["milliseconds"]
    assert datetime.fromisoformat(chat["time"]).utcoffset() is not None
    assert len(chat["time"].partition(".")[2]) == len("318+00:00")
    [stranger] = [line for line in read_lines(path) if line["status"] == 401]
    assert "organization" not in stranger
    assert "generation_id" not in stranger


def test_a_full_disk_stops_no_request(site: Site) -> None:
    site.publish()
    with serve(ACCESS_LOG="/dev/full") as served:
        site.server = served.address
        for _ in range(3):
            assert site.chat().status_code == 200
        site.eventually(lambda: read_counter(served.address, DROPPED, signal="access_log") >= 3)
        code, errors = served.stop()
    assert code == 0, errors
    assert errors.count("the access log cannot be written: No space left on device") == 1


def test_a_reader_that_has_stopped_costs_a_bounded_number_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log, before = AccessLog(str(path)), dropped()
    for number in range(40_000):
        log.write([entry(number)])
    # The pipe, the thread and the queue hold some of the lines; nobody takes the others.
    assert 20_000 < dropped() - before < 40_000
    os.close(reader)


def test_a_closed_pipe_is_survived(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log, before = AccessLog(str(path)), dropped()
    log.write([entry(1)])

    def has_read() -> bool:
        try:
            return os.read(reader, 4096).endswith(b"}\n")
        except BlockingIOError:
            return False

    eventually(has_read)
    os.close(reader)
    log.write([entry(2)])
    eventually(lambda: dropped() == before + 1)


def test_a_file_that_is_moved_away_is_opened_again(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    path, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    log = AccessLog(str(path))
    log.write([entry(1)])
    eventually(lambda: len(read_lines(path)) == 1)
    path.rename(moved)

    def is_open_again() -> bool:
        time.sleep(0.1)
        log.write([entry(2)])
        return bool(read_lines(path))

    eventually(is_open_again)
    assert read_lines(moved)[0]["path"] == "/1"
    log.close()


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    for number in range(2_000):
        log.write([entry(number)])
    log.close()
    assert [line["path"] for line in read_lines(path)] == [f"/{n}" for n in range(2_000)]


@pytest.mark.parametrize("is_text", [False, True])
def test_the_name_of_an_unknown_field_forges_no_line(tmp_path: Path, is_text: bool) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), is_text=is_text)
    refused = entry(1)
    secret = f"sk-cw-{'x' * 20}"
    refused.name_field(InvalidRequest(metadata={"fields": {f"a\n\ud800{secret}": "Unknown."}}))
    log.write([refused])
    log.write([entry(2)])
    log.close()
    first, second = path.read_text().splitlines()
    found = first.partition(" field=")[2] if is_text else json.loads(first)["field"]
    assert found == "a\\n\\ud800********"
    assert "/2" in second


def test_a_folder_that_is_missing_stops_the_start() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^ACCESS_LOG: there is no folder /nowhere\."):
        read_settings(ACCESS_LOG="/nowhere/access.log")


def test_by_default_a_line_stands_in_the_log(site: Site) -> None:
    site.publish()
    with serve(ACCESS_LOG="on") as served:
        site.server = served.address
        chat = site.chat(WORDS)
        refused = site.post({"model": site.model.slug, "messages": 7})
        listed = requests.post(
            f"{served.address}/api/v1/keys",
            json={"name": 5},
            headers={"Authorization": f"Bearer {site.tenant.management_key}"},
            timeout=60,
        )
        requests.get(f"{served.address}/sk-cw-{'x' * 20}%0Ainjected", timeout=60)
        assert (chat.status_code, refused.status_code, listed.status_code) == (200, 400, 400)
        site.eventually(lambda: "injected" in served.log)
        code, errors = served.stop()
    assert code == 0
    lines = [
        re.sub(r" [0-9.]+ ms| request_id=\S+", "", line[30:])
        for line in errors.splitlines()
        if " INFO access " in line and "/healthz" not in line
    ]
    owner = site.tenant.organization.pk
    # A line is written after its answer has gone out, so those of two requests may change places.
    assert sorted(lines) == [
        "INFO access GET /********\\ninjected 404",
        (
            f"INFO access POST {CHAT} 200 organization={owner} model={site.model.slug} "
            f"generation_id={chat.json()['id']}"
        ),
        f"INFO access POST {CHAT} 400 organization={owner} field=messages",
        f"INFO access POST /api/v1/keys 400 organization={owner} field=name",
    ]
    assert WORDS not in errors


def test_the_log_in_json_has_lines_in_json(site: Site) -> None:
    with serve(ACCESS_LOG="on", LOG_FORMAT="json") as served:
        requests.get(f"{served.address}/api/v1/models", timeout=60)
        site.eventually(lambda: "/api/v1/models" in served.log)
        code, errors = served.stop()
    assert code == 0
    [line] = [
        found
        for text in errors.splitlines()
        if text.startswith("{") and (found := json.loads(text)).get("path") == "/api/v1/models"
    ]
    assert (line["method"], line["status"]) == ("GET", 200)
    assert line["milliseconds"] > 0
