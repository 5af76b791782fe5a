"""The simulated upstream in a process of its own."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from config.local.certificates import ensure_certificates
from tests.support.upstreams.apart import simulator_apart


def test_it_answers_until_its_user_is_done() -> None:
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    body = {"model": "sim-echo", "messages": [{"role": "user", "content": "one two"}]}
    with simulator_apart() as base_url:
        answer = requests.post(
            f"{base_url}/chat/completions",
            json=body,
            headers={"Authorization": "Bearer key"},
            verify=str(certificates.ca),
            timeout=60,
        )
    assert answer.status_code == 200
    assert "one two" in answer.json()["choices"][0]["message"]["content"]
    assert urlsplit(base_url).scheme == "https"
    with pytest.raises(requests.ConnectionError):
        requests.get(base_url, verify=str(certificates.ca), timeout=60)
