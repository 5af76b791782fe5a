"""No module outside the egress room opens a connection."""

import ast
from pathlib import Path

CLIENTS = {
    "aiohappyeyeballs", "aiohttp", "ftplib", "http.client", "httpx", "requests", "smtplib",
    "urllib.request", "urllib3", "websockets",
}  # fmt: skip


# The embedded PostgreSQL runs beside the gateway in the demo and in tests. The watch of the replica
# calls PostgreSQL by psycopg, and shuts down the sockets of hanging readers.
# Mail goes by Django to the server that the operator configures, and its errors are smtplib's.
EXEMPT = {
    "config/outbound/sending.py",
    "config/database/replica/watch.py",
    "config/local/postgres.py",
}
APPS = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def test_no_other_module_opens_connections() -> None:
    root = Path(__file__).parents[3]
    found = []
    for path in sorted(path for app in APPS for path in (root / app).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name in EXEMPT or name.startswith("config/egress/"):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        modules = {module for node in nodes for module in imported(node)}
        calls = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        forbidden = {"open_connection", "create_connection", "getaddrinfo"}
        if "socket" in modules:  # a module may bind a socket but not connect it
            forbidden |= {"connect", "connect_ex", "sendto"}
            found += [f"{name}: {module}" for module in modules if module.startswith("socket.")]
        found += [f"{name}: {call}" for call in calls & forbidden]
        found += [
            f"{name}: {module}"
            for module in modules
            if any(module == client or module.startswith(f"{client}.") for client in CLIENTS)
        ]
    assert found == []
