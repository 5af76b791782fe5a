"""Requests with PDF files over real sockets: what is sent, priced and refused, and who waits."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from accounts.models import ApiKey, Guardrail
from catalog.dialects.base import Operation
from catalog.models import LanguageModel
from inference.documents import reading
from inference.documents.parts import bound_scratch
from inference.requests import parsing
from inference.taps import files
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_preset
from tests.support.inference.pdf_files import (
    PLUGIN,
    document_part,
    encode,
    file_part,
    find_readers,
    make_bomb,
    make_locked,
    make_paper,
    make_slow,
)
from tests.support.inference.site import Site, content_of, error_of, events_of

RESPONSES = "/api/v1/responses"
MESSAGES = "/api/v1/messages"
PAPER = make_paper("alpha beta", "gamma")


@pytest.fixture
def text_site(site: Site) -> Site:
    """The site with a model that takes text alone, on credits."""
    LanguageModel.objects.update(input_modalities=["text"])
    site.publish()
    return site


def chat(site: Site, *files: bytes, **fields: Any) -> requests.Response:
    words = {"type": "text", "text": "Read this:"}
    content = [words, *map(file_part, files)]
    return site.chat(content, plugins=[PLUGIN], max_tokens=50, **fields)


def send(site: Site, file: bytes, timeout: float) -> requests.Response:
    """Sends a file for a caller who waits for so many seconds."""
    return site.post(site.chat_body([file_part(file)], plugins=[PLUGIN]), timeout=timeout)


def sent_text(site: Site) -> str:
    """The only prompt that the provider got, as text."""
    [request] = site.dialled()
    assert "plugins" not in request.body
    assert b"base64" not in request.raw
    return json.dumps(request.body["messages"])


def test_a_model_that_takes_no_files_reads_the_text(text_site: Site) -> None:
    answer = chat(text_site, PAPER)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["cost"] > 0
    sent = sent_text(text_site)
    assert '<file name=\\"paper.pdf\\">\\n### Page 1\\nalpha beta\\n\\n### Page 2\\ngamma' in sent
    assert text_site.settled().status == "completed"


def test_without_the_plugin_the_model_must_take_files(text_site: Site) -> None:
    assert text_site.chat([file_part(PAPER)]).status_code == 404
    text_site.assert_nothing_happened()


def test_a_stream_reads_the_text(text_site: Site) -> None:
    assert "gamma" in content_of(events_of(chat(text_site, PAPER, stream=True).text))


def test_a_response_reads_the_text(text_site: Site) -> None:
    part = {"type": "input_file", "filename": "a.pdf", "file_data": encode(PAPER)}
    asked = [{"role": "user", "content": [part]}]
    body = {"model": text_site.model.slug, "input": asked, "plugins": [PLUGIN]}
    answer = text_site.post(body, path=RESPONSES)
    assert answer.status_code == 200, answer.text
    assert "gamma" in sent_text(text_site)


def message_body(site: Site) -> dict[str, Any]:
    messages = [{"role": "user", "content": [document_part(PAPER)]}]
    model = site.model.slug
    return {"model": model, "max_tokens": 50, "messages": messages, "plugins": [PLUGIN]}


def test_a_message_reads_the_text(text_site: Site) -> None:
    body = message_body(text_site)
    answer = text_site.post(body, path=MESSAGES)
    assert answer.status_code == 200, answer.text
    assert "gamma" in sent_text(text_site)
    counted = text_site.post(body, path=f"{MESSAGES}/count_tokens").json()
    assert 1 < counted["input_tokens"] < 1_000


@pytest.mark.parametrize(
    ("pdf", "text"),
    [(make_locked("password"), "is encrypted"), (make_bomb(), "takes more memory")],
    ids=["locked", "bomb"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_file_changes_nothing(
    pdf: bytes, text: str, stream: bool, text_site: Site
) -> None:
    with snapshots.unchanged():
        error = error_of(chat(text_site, PAPER, pdf, stream=stream), 400)
        [(field, problem)] = error["metadata"]["fields"].items()
        assert field == "messages[0].content[2].file"
        assert text in problem
    text_site.assert_nothing_happened()


def test_an_engine_of_others_and_a_url_are_refused_by_name(text_site: Site) -> None:
    with snapshots.unchanged():
        plugin = {"id": "file-parser", "pdf": {"engine": "mistral-ocr"}}
        error = error_of(text_site.chat([file_part(PAPER)], plugins=[plugin]), 400)
        assert list(error["metadata"]["fields"]) == ["plugins[0].pdf.engine"]
        part = file_part(f"{text_site.upstream.base_url}/a.pdf")
        error = error_of(text_site.chat([part], plugins=[PLUGIN]), 400)
        [field] = error["metadata"]["fields"]
        assert field == "messages[0].content[0].file.file_data"
    text_site.assert_nothing_happened()


def test_content_filters_read_the_text(text_site: Site) -> None:
    filters = [{"pattern": "gamma", "action": "block", "label": "greek"}]
    Guardrail.objects.edit_workspace_default(text_site.tenant.workspace, content_filters=filters)
    answer = chat(text_site, PAPER)
    assert answer.status_code == 403, answer.text
    text_site.assert_nothing_happened()


def test_the_hold_covers_the_text(site: Site) -> None:
    """A bound for any file is 131,072 tokens, for which the credits would not suffice either."""
    LanguageModel.objects.update(input_modalities=["text"])
    site.publish(price=factories.make_price("0.01"))
    answer = chat(site, make_paper("short"))
    assert answer.status_code == 200, answer.text
    site.settled()
    site.upstream.clear()
    with snapshots.unchanged():
        answer = chat(site, make_paper(*["word " * 1_000] * 22))
        assert answer.status_code == 402, answer.text
        assert site.dialled() == []


def test_a_neighbour_is_served_while_files_are_read(
    text_site: Site, neighbour: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each organization has one turn at a time, so the slow files of one leave a turn free."""
    monkeypatch.setattr(reading, "CPU_SECONDS", 3)
    slow = make_slow()
    answers: list[requests.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(send(text_site, slow, 120)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    text_site.eventually(lambda: bool(find_readers()))
    held = json.dumps(text_site.chat_body([file_part(slow)], plugins=[PLUGIN])).encode()
    scratch = bound_scratch(parsing.parse(Operation.CHAT, held))
    text_site.eventually(
        lambda: read_counter(text_site.server, "causeway_buffered_bytes") == 2 * len(held) + scratch
    )
    body = text_site.chat_body([file_part(PAPER)], plugins=[PLUGIN])
    answer = text_site.post(body, key=neighbour.api_key)
    assert answer.status_code == 200, answer.text
    # The first slow file takes three seconds, and the second waits for it.
    assert answers == []
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [400, 400]
    assert "seconds to read" in answers[0].text


def test_a_count_whose_key_is_revoked_while_it_waits_is_refused(
    text_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CPU_SECONDS", 3)
    body = message_body(text_site)
    slow = make_slow()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, text_site, slow, 120)
        text_site.eventually(lambda: bool(find_readers()))
        key = ApiKey.objects.get(name="inference", organization=text_site.tenant.organization)
        counted = pool.submit(text_site.post, body, path=f"{MESSAGES}/count_tokens")
        text_site.eventually(
            lambda: read_counter(text_site.server, "causeway_running_requests") == 2
        )
        key.revoke()
        assert first.result().status_code == 400
        assert counted.result().status_code == 401


def test_a_caller_who_leaves_gives_up_the_turn(
    text_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is ended by its limits; what waits behind it never begins."""
    monkeypatch.setattr(reading, "CPU_SECONDS", 3)
    slow = make_slow()
    for _ in range(8):
        with pytest.raises(requests.Timeout):
            send(text_site, slow, 0.3)
    answer = chat(text_site, PAPER)
    assert answer.status_code == 200, answer.text
    # What nobody waits for is counted until it ends.
    text_site.eventually(lambda: read_counter(text_site.server, "causeway_buffered_bytes") == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_reading_of_a_file_counts_for_the_callers_limit(
    text_site: Site, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CPU_SECONDS", 3)
    body = text_site.chat_body([file_part(make_slow())], plugins=[PLUGIN], stream=stream)
    with snapshots.unchanged():
        answer = text_site.post(body, headers={"X-Request-Timeout": "0.5"})
        assert (answer.status_code, answer.headers["X-Should-Retry"]) == (408, "false")
    text_site.assert_nothing_happened()
    text_site.eventually(lambda: read_counter(text_site.server, "causeway_buffered_bytes") == 0)


def test_too_long_a_queue_is_refused(text_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SECONDS", 0.01)
    with snapshots.unchanged():
        answer = chat(text_site, PAPER)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert "PDF files" in answer.text
    text_site.assert_nothing_happened()


def test_a_preset_may_name_the_plugin(text_site: Site) -> None:
    make_preset(text_site.tenant.workspace, "papers", plugins=[PLUGIN])
    answer = text_site.chat([file_part(PAPER)], preset="papers")
    assert answer.status_code == 200, answer.text
    assert "gamma" in sent_text(text_site)
