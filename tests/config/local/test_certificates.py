"""Certificates of the simulated provider."""

import socket
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from config.local.certificates import ensure_certificates
from tests.support.simulator.server import Simulator
from tests.support.upstreams.simulated import connect


def test_ensure_certificates_keeps_private_keys_private(tmp_path: Path) -> None:
    made = ensure_certificates(tmp_path / "new")
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "new", *(tmp_path / "new").iterdir()]
    }
    assert modes == {"new": 0o700, "ca.pem": 0o644, "ca-key.pem": 0o600, "server.pem": 0o600}
    assert b"PRIVATE" not in made.ca.read_bytes()


def test_ensure_certificates_reuses_valid_certificates(tmp_path: Path) -> None:
    first = ensure_certificates(tmp_path)
    before = (first.ca.read_bytes(), first.server.read_bytes())
    again = ensure_certificates(tmp_path)
    assert again == first
    assert (again.ca.read_bytes(), again.server.read_bytes()) == before


@pytest.mark.parametrize("content", [b"", b"rubbish", None])
def test_ensure_certificates_renews_an_unusable_server_certificate(
    tmp_path: Path, content: bytes | None
) -> None:
    made = ensure_certificates(tmp_path)
    authority = made.ca.read_bytes()
    expired = ensure_certificates(tmp_path, "expired").server.read_bytes()
    made.server.write_bytes(expired if content is None else content)
    ensure_certificates(tmp_path)
    assert made.ca.read_bytes() == authority
    assert made.server.read_bytes() not in (content, expired)
    certificate = x509.load_pem_x509_certificate(made.server.read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))


def test_ensure_certificates_keeps_the_mode_of_an_existing_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    ensure_certificates(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["localhost", "simulator.test", "127.0.0.1", "::1"])
def test_the_certificate_is_valid_for_every_name(simulator: Simulator, name: str) -> None:
    assert simulator.certificates
    context = simulator.certificates.client_context()
    with (
        socket.create_connection((simulator.host, simulator.port), 5) as sock,
        context.wrap_socket(sock, server_hostname=name) as tls,
    ):
        assert tls.version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("expired", "certificate has expired"),
        ("self-signed", "self-signed certificate"),
        ("wrong-host", "Hostname mismatch, certificate is not valid for 'localhost'."),
    ],
)
def test_a_faulty_certificate_is_refused_and_no_request_arrives(
    tmp_path: Path, fault: Any, reason: str
) -> None:
    made = ensure_certificates(tmp_path, fault)
    with Simulator(made).run_in_thread() as server:
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            connect(server)
        assert caught.value.verify_message == reason
        assert server.wait_until(lambda: server.open_connections == 0)
        assert (server.connections, server.total_requests) == (1, 0)
