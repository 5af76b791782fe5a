"""EVM nodes for tests, a token on them, and a front that spoils a node's answers."""

from __future__ import annotations

import fcntl
import http.client
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest
from eth_abi import encode
from eth_tester import EthereumTester, PyEVMBackend
from eth_tester.exceptions import BlockNotFound, TransactionNotFound
from eth_utils import function_signature_to_4byte_selector

from billing.topups.chains import Chain, Confirmations, Token, parse_address
from tests.support.upstreams.tls import serving

ANVIL = "1.7.1"
ROOT = Path(__file__).parents[3]
# An EVM in Python raises Python's limit so far that deep JSON, which other tests send, overruns the
# stack of the process; our token needs nothing of the kind.
_RECURSION_LIMIT = 1_000
sys.setrecursionlimit(_RECURSION_LIMIT)
RECIPIENT = parse_address("0x" + "c0ffee" * 6 + "c0de")
# The answer of decimals() in the bytecode: PUSH1 6, PUSH1 64, MSTORE.
_SIX = "6006604052"
_CODE = json.loads((ROOT / "tests" / "billing" / "topups" / "token.json").read_text())


class Local(Protocol):
    """A node of this machine: `rpc` makes one call, and raises on an error."""

    url: str

    def rpc(self, method: str, *params: Any) -> Any: ...


def post(url: str, body: bytes) -> bytes:
    """Sends a JSON body to a local address and returns the answer's."""
    address, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("POST", f"/{path}", body, {"Content-Type": "application/json"})
        return connection.getresponse().read()
    finally:
        connection.close()


def call(url: str, method: str, *params: Any) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = json.loads(post(url, json.dumps(message).encode()))
    assert "error" not in answer, answer
    return answer["result"]


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


def _wire(value: Any) -> Any:
    """Returns a value of eth-tester as JSON-RPC writes it."""
    if isinstance(value, Mapping):
        return {_camel(name): _wire(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_wire(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return "0x" + value.hex() if isinstance(value, bytes) else value


def _number(text: str) -> str | int:
    return int(text, 16) if text.startswith("0x") else text


class EthTester:
    """A real EVM in this process. Its `finalized` is its latest block, and each transaction's logs
    are numbered from 0."""

    def __init__(self) -> None:
        self.tester = EthereumTester(PyEVMBackend())
        self.url = ""
        self._lock = threading.Lock()
        self._snapshots: list[Any] = []

    def rpc(self, method: str, *params: Any) -> Any:
        with self._lock:
            try:
                return _wire(getattr(self, method)(*params))
            except (BlockNotFound, TransactionNotFound):
                return None

    def eth_chainId(self) -> int:  # noqa: N802
        return int(self.tester.backend.chain.chain_id)

    def eth_accounts(self) -> Any:
        return self.tester.get_accounts()

    def eth_getBlockByNumber(self, number: str, full: bool) -> Any:  # noqa: N802
        return self.tester.get_block_by_number(_number(number), full)

    def eth_getTransactionReceipt(self, tx_hash: str) -> Any:  # noqa: N802
        return self.tester.get_transaction_receipt(tx_hash)

    def eth_getLogs(self, wanted: dict[str, Any]) -> Any:  # noqa: N802
        of = wanted["address"]
        return self.tester.get_logs(
            from_block=_number(wanted["fromBlock"]),
            to_block=_number(wanted["toBlock"]),
            address=[*map(parse_address, of)] if isinstance(of, list) else parse_address(of),
            topics=wanted["topics"],
        )

    def eth_getCode(self, address: str, block: str) -> Any:  # noqa: N802
        return self.tester.get_code(parse_address(address))

    def eth_call(self, wanted: dict[str, Any], block: str) -> Any:
        to, payer = parse_address(wanted["to"]), self.tester.get_accounts()[0]
        return self.tester.call({**wanted, "to": to, "from": payer, "gas": 100_000})

    def eth_sendTransaction(self, wanted: dict[str, Any]) -> Any:  # noqa: N802
        gas = int(wanted.get("gas", "0x1e8480"), 16)
        # It stamps a block with the time of the one before.
        evm = self.tester.backend.chain
        evm.set_header_timestamp(max(evm.header.timestamp, math.ceil(time.time())))
        return self.tester.send_transaction({**wanted, "gas": gas})

    def evm_mine(self) -> Any:
        return self.tester.mine_blocks(1)

    def evm_snapshot(self) -> int:
        self._snapshots.append(self.tester.take_snapshot())
        return len(self._snapshots)

    def evm_revert(self, number: str) -> bool:
        self.tester.revert_to_snapshot(self._snapshots[int(number, 16) - 1])
        return True


@contextmanager
def start_eth_tester() -> Iterator[EthTester]:
    """Serves an eth-tester over JSON-RPC, batches included."""
    node = EthTester()
    # Some of it is imported only now.
    sys.setrecursionlimit(_RECURSION_LIMIT)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answers = [
                {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    "result": node.rpc(message["method"], *message["params"]),
                }
                for message in (asked if isinstance(asked, list) else [asked])
            ]
            body = json.dumps(answers if isinstance(asked, list) else answers[0]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        # Many watchers come at the same moment.
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        node.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield node
        finally:
            server.shutdown()
            thread.join()


def _anvil() -> Path:
    """Returns the program, installed once from npm; skips the test where it cannot be had."""
    home = ROOT / ".data" / f"anvil-{ANVIL}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of one run want it at the same time
        if not (found := list(home.glob("node_modules/@foundry-rs/anvil-*/bin/anvil"))):
            if (npm := shutil.which("npm")) is None:
                pytest.skip("npm is not installed, which brings anvil")
            package = f"@foundry-rs/anvil@{ANVIL}"
            installed = subprocess.run(
                [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", package],
                cwd=home,
                capture_output=True,
                check=False,
                timeout=120,
            )
            found = list(home.glob("node_modules/@foundry-rs/anvil-*/bin/anvil"))
            if installed.returncode or not found:
                pytest.skip(f"npm could not install {package}")
    return found[0]


class Anvil:
    """A real node in a process of its own; an epoch has one slot, so two blocks make one final."""

    def __init__(self, chain_id: int = 8453) -> None:
        self._chain_id = chain_id
        self.url = ""

    def __enter__(self) -> Anvil:
        self._process = subprocess.Popen(
            [_anvil(), "--port=0", f"--chain-id={self._chain_id}", "--slots-in-an-epoch=1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.match(r"Listening on (\S+)", line):
                self.url = f"http://{found[1]}"
                break
        # A full pipe would stop the node.
        self._drain = threading.Thread(target=self._process.stdout.read, daemon=True)
        self._drain.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._drain.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def rpc(self, method: str, *params: Any) -> Any:
        result = call(self.url, method, *params)
        if method == "eth_sendTransaction" and call(self.url, "anvil_getAutomine"):
            # The block is made just after the answer.
            while call(self.url, "eth_getTransactionReceipt", result) is None:
                time.sleep(0.005)
        return result


@dataclass
class Contract:
    """The token of `token.vy` on a node; every method sends one transaction, and returns its hash.

    `payers` are the node's own accounts; the first one owns the whole supply.
    """

    node: Local
    address: str
    payers: list[str]

    def send(self, signature: str, *values: Any, payer: int = 0) -> str:
        types = signature[signature.index("(") + 1 : -1].split(",")
        data = function_signature_to_4byte_selector(signature) + encode(types, values)
        return str(
            self.node.rpc(
                "eth_sendTransaction",
                {
                    "from": self.payers[payer],
                    "to": self.address,
                    "data": "0x" + data.hex(),
                    "gas": hex(200_000),
                },
            )
        )

    def pay(self, units: int, to: str = RECIPIENT, payer: int = 0) -> str:
        return self.send("transfer(address,uint256)", to, units, payer=payer)

    def pay_twice(self, first: int, second: int, to: str = RECIPIENT) -> str:
        return self.send("pay_twice(address,uint256,uint256)", to, first, second)

    def pretend(self, sender: str, units: int, to: str = RECIPIENT) -> str:
        return self.send("pretend(address,address,uint256)", sender, to, units)


def deploy(node: Local, supply: int = 10**15, decimals: int = 6) -> Contract:
    """Puts a token of its own on the node."""
    payers = [parse_address(account) for account in node.rpc("eth_accounts")]
    code = _CODE["bytecode"].replace(_SIX, f"60{decimals:02x}604052")
    assert code.count(f"60{decimals:02x}604052")
    data = code + encode(["uint256"], [supply]).hex()
    tx_hash = node.rpc("eth_sendTransaction", {"from": payers[0], "data": data})
    receipt = node.rpc("eth_getTransactionReceipt", tx_hash)
    return Contract(node, parse_address(receipt["contractAddress"]), payers)


def chain_of(
    contract: Contract,
    *,
    url: str = "",
    confirmations: Confirmations = "finalized",
    decimals: int = 6,
) -> Chain:
    """Returns the configuration that takes payments in this token, through `url` if given."""
    return Chain(
        chain_id=int(contract.node.rpc("eth_chainId"), 16),
        rpc_url=url or contract.node.url,
        token=Token(contract.address, decimals, "TUSD"),
        recipient=RECIPIENT,
        confirmations=confirmations,
    )


Answers = list[dict[str, Any]]
# Gets the calls and the node's answers, and returns what is sent instead: the same, or a response.
Fault = Callable[[Answers, Answers], "Answers | bytes"]


def http_response(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    return head.encode() + body


def _honest(calls: Answers, answers: Answers) -> Answers:
    return answers


@dataclass
class Front:
    """Stands before a node: records the calls, and spoils the answers as `fault` says."""

    node: Local
    url: str = ""
    fault: Fault = _honest
    drip: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)

    def script(self, line: socket.socket, head: bytes, body: bytes) -> bool:
        calls = json.loads(body)
        self.calls += calls
        spoilt = self.fault(calls, json.loads(post(self.node.url, body)))
        answer = spoilt if isinstance(spoilt, bytes) else http_response(json.dumps(spoilt).encode())
        step = 1 if self.drip else len(answer)
        for place in range(0, len(answer), step):
            line.sendall(answer[place : place + step])
            time.sleep(self.drip)
        return False

    def asked(self, method: str) -> list[Any]:
        """Returns the parameters of the recorded calls of one method."""
        return [asked["params"] for asked in self.calls if asked["method"] == method]


@contextmanager
def before(node: Local) -> Iterator[Front]:
    """Puts a front before a node, honest until it is given a fault."""
    front = Front(node)
    with serving(partial(Front.script, front)) as server:
        front.url = f"http://127.0.0.1:{server.port}/v2/node-key"
        yield front
