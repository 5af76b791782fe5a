"""Tests the settings of chains, tokens and addresses."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from billing.topups.chains import Chain, Token, checksum_address, parse_address, parse_chains
from tests.support.settings import read_settings

USDC = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
OWNER = "0xd8dA6BF26964aF9D7eEd9e03E53415D37aA96045"


@pytest.mark.parametrize(
    "address",
    [
        # These are the examples of EIP-55.
        "0x52908400098527886E0F7030069857D2E4169EE7",
        "0x8617E340B3D01FA5F11F306F4090FD50E238070D",
        "0xde709f2102306220921060314715629080e2fb77",
        "0x27b1fdb04752bbc536007a920d24acb045561c26",
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
        "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
    ],
)
def test_parse_address_accepts_three_spellings(address: str) -> None:
    digits = address[2:]
    assert parse_address(address) == address
    assert parse_address("0x" + digits.lower()) == address
    assert parse_address("0x" + digits.upper()) == address
    assert checksum_address(bytes.fromhex(digits)) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "0x", USDC[2:], USDC[:-1], USDC + "0", "0X" + USDC[2:], USDC + "\n", " " + USDC,
        "0x" + "g" * 40, "0x" + "٣" * 40, "vitalik.eth",
    ],
)  # fmt: skip
def test_parse_address_refuses_malformed_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"^an address must be 0x and 40 hexadecimal digits$"):
        parse_address(text)


@pytest.mark.parametrize("place", [4, 10, 20, 41])
def test_parse_address_checks_the_checksum_of_mixed_case(place: int) -> None:
    letters = [place for place, letter in enumerate(USDC) if letter.isalpha() and place > 1]
    place = min(letters, key=lambda letter: abs(letter - place))
    wrong = USDC[:place] + USDC[place].swapcase() + USDC[place + 1 :]
    with pytest.raises(ValueError, match=r"^the checksum of the address is wrong$"):
        parse_address(wrong)


@pytest.mark.parametrize(
    ("decimals", "cents", "units"),
    [(6, 1, 10_000), (6, 1_234, 12_340_000), (9, 100, 10**9), (18, 1, 10**16), (36, 5, 5 * 10**34)],
)
def test_units_of_converts_cents(decimals: int, cents: int, units: int) -> None:
    token = Token(USDC, decimals, "USDC")
    assert token.units_of(cents) == units
    assert token.nano_usd_of(units) == cents * 10**7


@pytest.mark.parametrize(
    ("decimals", "units", "nano_usd"),
    [
        (6, 1, 1_000),
        (6, 10_009_999, 10_009_999_000),
        (9, 1, 1),
        (18, 10**9 - 1, 0),
        (18, 10**9, 1),
        (18, 2 * 10**9 - 1, 1),
        (6, 2**256 - 1, (2**256 - 1) * 1_000),
    ],
)
def test_nano_usd_of_rounds_down(decimals: int, units: int, nano_usd: int) -> None:
    assert Token(USDC, decimals, "USDC").nano_usd_of(units) == nano_usd


def parse(
    rpc_urls: str = "8453=http://127.0.0.1:8545",
    tokens: str = f"8453={USDC}:6:USDC",
    recipients: str = f"8453={OWNER}",
    confirmations: str = "",
) -> dict[int, Chain]:
    return parse_chains(
        rpc_urls=rpc_urls, tokens=tokens, recipients=recipients, confirmations=confirmations
    )


def test_parse_returns_no_chain_for_empty_settings() -> None:
    assert parse("", "", "", "") == {}
    assert parse(" ", "", "", "") == {}


def test_parse_reads_several_chains() -> None:
    chains = parse(
        "1=https://eth.example/v2/key?a=b, 8453=http://10.0.0.5:8545,137=https://p.example,5=http://n",
        ",".join(f"{number}={USDC.lower()}:6:USDC" for number in (8453, 137, 5))
        + f",1={OWNER}:18:DAI",
        f"1={USDC},137={OWNER},8453={OWNER.lower()},5={OWNER}",
        "137=safe,8453=12,1=finalized",
    )
    usdc = Token(USDC, 6, "USDC")
    assert chains == {
        1: Chain(1, "https://eth.example/v2/key?a=b", Token(OWNER, 18, "DAI"), USDC, "finalized"),
        8453: Chain(8453, "http://10.0.0.5:8545", usdc, OWNER, 12),
        137: Chain(137, "https://p.example", usdc, OWNER, "safe"),
        5: Chain(5, "http://n", usdc, OWNER, "finalized"),
    }
    assert [chain.name for chain in chains.values()] == ["Ethereum", "Base", "Polygon", "Chain 5"]


def test_repr_of_a_chain_hides_the_url_of_its_node() -> None:
    (chain,) = parse("8453=https://node.example/v2/secret-key").values()
    assert "secret-key" not in repr(chain)
    assert "node.example" not in repr(chain)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": ""}, "CHAIN_TOKENS has no value for chain 8453 of CHAIN_RPC_URLS; add one"),
        ({"recipients": ""},
         "TOP_UP_RECIPIENTS has no value for chain 8453 of CHAIN_RPC_URLS; add one"),
        ({"rpc_urls": ""},
         "CHAIN_TOKENS names chain 8453, but CHAIN_RPC_URLS does not; add the chain there"),
        ({"recipients": f"8453={OWNER},1={OWNER}"},
         "TOP_UP_RECIPIENTS names chain 1, but CHAIN_RPC_URLS does not; add the chain there"),
        ({"confirmations": "1=safe"},
         "CHAIN_CONFIRMATIONS names chain 1, but CHAIN_RPC_URLS does not; add the chain there"),
        ({"rpc_urls": "8453=http://a,8453=http://b"},
         "CHAIN_RPC_URLS names chain 8453 twice; name it once"),
        ({"confirmations": "8453=1,8453=1"},
         "CHAIN_CONFIRMATIONS names chain 8453 twice; name it once"),
        *(
            ({"rpc_urls": text},
             "CHAIN_RPC_URLS must be a comma list of CHAIN_ID=value, where CHAIN_ID is a number")
            for text in (
                "http://secret", "8453=", "=http://secret", "8453=http://secret,",
                "0=http://secret", "-1=http://secret", "01=http://secret", "1.0=http://secret",
                "base=http://secret", "٣=http://secret", "9223372036854775808=http://secret",
            )
        ),
        ({"rpc_urls": "8453=ftp://secret"},
         "CHAIN_RPC_URLS: chain 8453: the URL must begin with https://"),
        ({"rpc_urls": "8453=https://secret:secret@node.example"},
         "CHAIN_RPC_URLS: chain 8453: the URL must not hold a user name or a password"),
        *(
            ({"tokens": f"8453={text}"},
             "CHAIN_TOKENS: chain 8453: expected CONTRACT:DECIMALS:SYMBOL")
            for text in (
                USDC, f"{USDC}:6", f"{USDC}:6:USDC:x", f"{USDC}:six:USDC", f"{USDC}:-6:USDC",
                f"{USDC}:06:USDC", f"{USDC}:6:", f"{USDC}:6:<b>",
            )
        ),
        *(
            ({"tokens": f"8453={USDC}:{decimals}:USDC"},
             "CHAIN_TOKENS: chain 8453: the decimals must be from 6 to 36")
            for decimals in (0, 5, 37)
        ),
        ({"tokens": f"8453={USDC.swapcase().replace('X', 'x')}:6:USDC"},
         "CHAIN_TOKENS: chain 8453: the checksum of the address is wrong"),
        ({"recipients": "8453=0x12"},
         "TOP_UP_RECIPIENTS: chain 8453: an address must be 0x and 40 hexadecimal digits"),
        ({"recipients": f"8453=0x{'0' * 40}"},
         "TOP_UP_RECIPIENTS: chain 8453: the address must not be the zero address"),
        ({"recipients": f"8453={USDC}"},
         ("TOP_UP_RECIPIENTS: the recipient of chain 8453 is the token's contract, where payments "
          "are lost")),
        *(
            ({"confirmations": f"8453={text}"},
             ("CHAIN_CONFIRMATIONS: chain 8453: expected finalized, safe or a number from 1 to "
              "100000"))
            for text in ("latest", "0", "-1", "1.5", "100001", "Finalized", "1000000000")
        ),
    ],
)  # fmt: skip
def test_parse_refuses_an_invalid_configuration(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse(**given)
    assert str(caught.value) == message


def test_parse_accepts_the_largest_chain_id_of_the_column() -> None:
    (chain,) = parse(
        "9223372036854775807=http://n",
        f"9223372036854775807={USDC}:6:USDC",
        f"9223372036854775807={OWNER}",
    ).values()
    assert chain.chain_id == 2**63 - 1


def test_invalid_settings_stop_the_start() -> None:
    names = ("CHAINS", "TOP_UP_LIFETIME", "TOP_UP_GRACE")
    found = read_settings()
    assert [found[name] for name in names] == [{}, 3_600, 86_400]
    url = "1=https://node.example/v2/secret-key"
    found = read_settings(
        CHAIN_RPC_URLS=url,
        CHAIN_TOKENS=f"1={USDC}:6:USDC",
        TOP_UP_RECIPIENTS=f"1={OWNER}",
        CHAIN_CONFIRMATIONS="1=12",
        TOP_UP_LIFETIME="60",
        TOP_UP_GRACE="0",
    )
    token = Token(contract=USDC, decimals=6, symbol="USDC")
    chain = Chain(1, url.partition("=")[2], token, OWNER, confirmations=12)
    assert [found[name] for name in names] == [{1: chain}, 60, 0]
    with pytest.raises(ImproperlyConfigured) as refusal:
        read_settings(CHAIN_RPC_URLS=url)
    assert str(refusal.value) == (
        "CHAIN_TOKENS has no value for chain 1 of CHAIN_RPC_URLS; add one."
    )
