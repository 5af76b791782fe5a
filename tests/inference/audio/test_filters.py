"""Content filters on speech and transcriptions: texts are read, and sound is not."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from accounts.models import ApiKey
from tests.support.bodies.samples import make_wav
from tests.support.governance import make_guardrail
from tests.support.inference.site import Site, error_of

SPEECH = "/api/v1/audio/speech"
TRANSCRIPTIONS = "/api/v1/audio/transcriptions"


def guard(site: Site, action: str, **fields: Any) -> None:
    """Applies a filter of e-mail addresses to the tenant's key."""
    site.model.output_modalities = ["speech", "transcription"]
    site.model.save_fields("output_modalities")
    site.publish()
    entry = {"slug": "email", "action": action, "label": "[EMAIL]", **fields}
    guardrail = make_guardrail(site.tenant.workspace, content_filter_builtins=[entry])
    guardrail.assign_keys([ApiKey.objects.get(name="inference")], by="test")


def transcribe(site: Site, **data: Any) -> requests.Response:
    fields = {"model": site.model.slug, **data}
    file = ("me@example.com.wav", make_wav(1, rate=1_000))
    return site.post(None, path=TRANSCRIPTIONS, data=fields, files={"file": file})


def test_a_text_to_speak_is_redacted_before_it_is_sent(site: Site) -> None:
    guard(site, "redact")
    body = {"model": site.model.slug, "input": "Write to me@example.com now.",
            "instructions": "Like me@example.com.", "response_format": "wav"}  # fmt: skip
    assert site.post(body, path=SPEECH).status_code == 200
    [sent] = site.dialled()
    assert sent.body["input"] == "Write to [EMAIL] now."
    assert sent.body["instructions"] == "Like [EMAIL]."


@pytest.mark.parametrize("field", ["input", "instructions", "voice", "unknown"])
def test_a_blocked_text_is_never_spoken(site: Site, field: str) -> None:
    guard(site, "block")
    body = {"model": site.model.slug, "input": "Hello.", field: "me@example.com"}
    assert site.post(body, path=SPEECH).status_code == 403
    site.assert_nothing_happened()


def test_the_prompt_of_a_transcription_is_read_and_its_file_is_not(site: Site) -> None:
    guard(site, "redact")
    assert transcribe(site, prompt="me@example.com said").status_code == 200
    [sent] = site.dialled()
    assert sent.body["prompt"] == "[EMAIL] said"
    assert b"me@example.com" not in sent.raw


def test_a_filter_that_blocks_what_it_cannot_read_blocks_a_file(site: Site) -> None:
    guard(site, "block", block_unreadable=True)
    assert "cannot read it" in error_of(transcribe(site), 403)["message"]
    site.assert_nothing_happened()
    body = {"model": site.model.slug, "input": "Hello.", "response_format": "wav"}
    assert site.post(body, path=SPEECH).status_code == 200
