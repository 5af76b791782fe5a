"""Makes the certificate authority and the server certificates of the simulated provider."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import re
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from config.clocks.clock import clock

SERVER_NAMES = ("localhost", "simulator.test", "127.0.0.1", "::1")
CertificateFault = Literal["expired", "self-signed", "wrong-host"]


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of an authority (public part) and of a server's certificate with key."""

    ca: Path
    server: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server)
        return context

    def client_context(self) -> ssl.SSLContext:
        """Returns a context that trusts only this authority, with the checks of Python 3.13."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


def ensure_certificates(
    cert_dir: Path,
    fault: CertificateFault | None = None,
    *,
    names: tuple[str, ...] = SERVER_NAMES,
) -> Certificates:
    """Creates the authority and a server certificate, or reuses them while they are valid.

    With a ``fault``, creates a server certificate that a client must refuse. Certificates with
    faults or other names are stored in the same directory, under the same authority. Several
    processes may use a directory at once.
    """
    # An existing directory keeps its mode: it may be a home directory or /tmp.
    cert_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = clock.now()
    authority_path = cert_dir / "ca-key.pem"
    authority = _load_pair(authority_path)
    if authority is None or authority[1].not_valid_after_utc < now + datetime.timedelta(days=400):
        authority_path.unlink(missing_ok=True)
        _write(authority_path, _pem(_create_pair(None, now, days=3650)), exclusive=True)
        authority = _load_pair(authority_path)
        if authority is None:
            raise OSError(f"{authority_path} cannot be read back")
    _write(cert_dir / "ca.pem", authority[1].public_bytes(serialization.Encoding.PEM), mode=0o644)

    kind = fault or ("" if names == SERVER_NAMES else _digest(names))
    server_path = cert_dir / (f"server-{kind}.pem" if kind else "server.pem")
    server = _load_pair(server_path)
    # A faulty certificate is created again each time, because it cannot be checked.
    if fault or server is None or not _is_valid(server[1], authority[1], now):
        names = ("wrong-host.test",) if fault == "wrong-host" else names
        issuer = None if fault == "self-signed" else authority
        start = now - datetime.timedelta(days=30) if fault == "expired" else now
        days = 10 if fault == "expired" else 397
        _write(server_path, _pem(_create_pair(issuer, start, days=days, names=names)))
    return Certificates(ca=cert_dir / "ca.pem", server=server_path)


def _digest(names: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


_Pair = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


def _is_valid(
    certificate: x509.Certificate, authority: x509.Certificate, now: datetime.datetime
) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError):
        return False
    return certificate.not_valid_after_utc > now + datetime.timedelta(days=30)


def _create_pair(
    issuer: _Pair | None,
    start: datetime.datetime,
    *,
    days: int,
    names: tuple[str, ...] = (),
) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    title = names[0] if names else "Causeway simulator CA"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    issuer_key, issuer_name = (issuer[0], issuer[1].subject) if issuer else (key, subject)
    usages = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
         "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        False,
    )  # fmt: skip
    usages |= {"digital_signature": True} if names else {"key_cert_sign": True, "crl_sign": True}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Valid from yesterday on, for clients whose clocks are slow.
        .not_valid_before(start - datetime.timedelta(days=1))
        .not_valid_after(start + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=not names, path_length=None if names else 0), critical=True
        )
        .add_extension(x509.KeyUsage(**usages), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if names:
        alternatives = [
            x509.IPAddress(ipaddress.ip_address(name))
            if re.fullmatch(r"[\d.]+|.*:.*", name)
            else x509.DNSName(name)
            for name in names
        ]
        builder = builder.add_extension(
            x509.SubjectAlternativeName(alternatives), critical=False
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return key, builder.sign(issuer_key, hashes.SHA256())


def _pem(pair: _Pair) -> bytes:
    return pair[0].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + pair[1].public_bytes(serialization.Encoding.PEM)


def _load_pair(path: Path) -> _Pair | None:
    try:
        content = path.read_bytes()
        key = serialization.load_pem_private_key(content, None)
        certificate = x509.load_pem_x509_certificate(content)
    except (FileNotFoundError, ValueError):
        return None
    return (key, certificate) if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _write(path: Path, content: bytes, *, mode: int = 0o600, exclusive: bool = False) -> None:
    """Writes a file atomically; if ``exclusive``, the first of several writers wins."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(name, mode)
    if not exclusive:
        os.replace(name, path)
        return
    with contextlib.suppress(FileExistsError):
        os.link(name, path)
    os.unlink(name)
