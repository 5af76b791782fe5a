"""A test certificate authority and a scripted TLS server on loopback, one thread a connection."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from config.local.certificates import ensure_certificates

# Writes an answer to the connection; true when the connection shall serve another request.
Script = Callable[[socket.socket, bytes, bytes], bool]


class Authority:
    """Issues certificates; `bundle` is the PEM file that a client trusts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        certificate = (
            self._builder(self._name, self._key, days=1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.bundle = str(directory / "authority.pem")
        Path(self.bundle).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        issuer: x509.Name | None = None,
        days: int,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        end = now + datetime.timedelta(days=days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - datetime.timedelta(days=1))
            .not_valid_after(end)
        )

    def server_context(
        self, *hosts: str, expired: bool = False, self_signed: bool = False
    ) -> ssl.SSLContext:
        """Return a server's context whose certificate names these hosts."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        issuer = subject if self_signed else self._name
        builder = self._builder(subject, key, issuer=issuer, days=-1 if expired else 1)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
        certificate = builder.sign(key if self_signed else self._key, hashes.SHA256())
        path = self._directory / f"{certificate.serial_number}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Server:
    """Records what arrives: `connections` accepted, `requests` as (head, body), `names` of SNI."""

    def __init__(self, script: Script, context: ssl.SSLContext | None, address: str) -> None:
        self.script = script
        self.context = context
        self.connections = 0
        self.requests: list[tuple[bytes, bytes]] = []
        self.names: list[str | None] = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.create_server((address, 0), family=family)
        self.port: int = self.listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        if context is not None:
            context.sni_callback = lambda _, name, __: self.names.append(name)
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(line,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket) -> None:
        self._open.add(line)
        try:
            if self.context is not None:
                self._open.discard(line)
                line = self.context.wrap_socket(line, server_side=True)
                self._open.add(line)
            while (received := _receive(line)) is not None:
                self.requests.append(received)
                if not self.script(line, *received):
                    return
        except OSError:
            return
        finally:
            self._open.discard(line)
            line.close()

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for line in list(self._open):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(5)


def _receive(line: socket.socket) -> tuple[bytes, bytes] | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = line.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for header in head.split(b"\r\n")[1:]:
        name, _, value = header.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        piece = line.recv(65536)
        if not piece:
            return None
        body += piece
    return head, body


def trusted_context() -> ssl.SSLContext:
    """Return the context of a server on loopback whose certificate the service trusts."""
    directory = Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls"
    return ensure_certificates(directory).server_context()


@contextmanager
def serving(
    script: Script, context: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> Iterator[Server]:
    """Run a server for the time of a block."""
    server = Server(script, context, address)
    try:
        yield server
    finally:
        server.close()


def answering(
    body: bytes = b"hello", status: str = "200 OK", headers: tuple[str, ...] = ()
) -> Script:
    """Return a script that answers every request with this, and keeps the connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    answer = "\r\n".join(lines).encode("latin-1") + body

    def script(line: socket.socket, head: bytes, received: bytes) -> bool:
        line.sendall(answer)
        return True

    return script


def sending(*pieces: bytes) -> Script:
    """Return a script that sends these raw pieces and closes the connection."""

    def script(line: socket.socket, head: bytes, received: bytes) -> bool:
        for piece in pieces:
            line.sendall(piece)
        return False

    return script


@contextmanager
def answering_anything(answer: bytes) -> Iterator[int]:
    """Yields the port of a server that answers the first bytes, whatever they are."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(65_536)
                line.sendall(answer)

        thread = threading.Thread(target=answer_once, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(60)
