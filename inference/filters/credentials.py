"""Recognises keys, tokens and passwords that have a published form; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from accounts.patterns import compile_pattern
from inference.filters.recogniser import NOTHING, Recogniser, Span, is_digit

_W: Final = "[0-9A-Za-z_-]"
_A: Final = "[0-9A-Za-z]"
_X: Final = "[0-9a-f]"
_UUID: Final = rf"{_X}{{8}}(?:-{_X}{{4}}){{3}}-{_X}{{12}}"
_PRIVATE_KEY: Final = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
# What may stand in a key and its headers, whose line ends may be escaped.
_PEM: Final = r"[0-9A-Za-z+/=:,.()\s\\-]"
# How each begins, which is searched for, and how it goes on.
_PREFIXED: Final = (
    (r"[sm]k-cw-", r"(?:[0-9a-z]{8}-)?[0-9A-Za-z]{49}"),  # this gateway's own keys
    (r"(?:AKIA|ASIA|ABIA|ACCA)", r"[0-9A-Z]{16}"),
    (r"ABSK", r"[0-9A-Za-z+/]{60,}={0,2}"),  # Bedrock
    (r"AIza", rf"{_W}{{35}}"),
    (r"(?:ya29\.|1//0)", rf"{_W}{{20,}}"),
    (r"GOCSPX-", rf"{_W}{{28}}"),
    (r"(?:dapi|dose|dkea)", rf"{_X}{{32}}(?:-[0-9])?"),  # Databricks
    (r"hv[sbr]\.", rf"{_W}{{24,}}"),  # Vault
    (r"do[opr]_v1_", rf"{_X}{{64}}"),
    (r"LTAI", rf"{_A}{{16,20}}"),
    (r"AKID", rf"{_A}{{32}}"),
    (r"AQVN", rf"{_W}{{35,}}"),
    (r"y0_", rf"{_W}{{50,}}"),
    (r"v1\.0-", rf"{_X}{{24}}-{_X}{{100,}}"),  # Cloudflare's origin
    (r"cf(?:ut|at|k)_", rf"{_A}{{40,}}"),
    (r"sha256~", rf"{_W}{{43}}"),  # OpenShift
    (r"tskey-[a-z]+-", rf"{_A}{{8,}}-{_A}{{16,}}"),
    (r"HRKU-", rf"{_W}{{50,}}"),
    (r"fo1_", rf"{_W}{{43}}"),
    (r"fm[12]_", r"[0-9A-Za-z+/]{60,}={0,2}"),
    (r"rnd_", rf"{_A}{{28}}"),
    (r"pscale_(?:tkn|pw|oauth)_", r"[0-9A-Za-z_.-]{32,}"),
    (r"sbp_", rf"{_X}{{40}}"),
    (r"sb_secret_", rf"{_W}{{22,}}"),
    (r"nfp_", rf"{_A}{{36}}"),
    (r"v[ck][ipkca]?_", rf"{_A}{{24,}}"),  # Vercel
    (r"pul-", rf"{_X}{{40}}"),
    (r"napi_", rf"{_A}{{60,}}"),
    (r"dp\.(?:pt|ct|sa|scim|audit|st(?:\.[a-z0-9_-]+)?)\.", rf"{_A}{{40,44}}"),
    (r"dt0[a-z][0-9]{2}\.", r"[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    (r"ops_eyJ", r"[0-9A-Za-z+/]{60,}={0,2}"),
    (r"A3-[A-Z0-9]{6}-", r"(?:[A-Z0-9]{5,11}-){3,4}[A-Z0-9]{5}"),
    (r"hf_", r"[A-Za-z0-9]{30,}"),
    (r"api_org_", r"[A-Za-z0-9]{34}"),
    (r"(?:gsk_|xai-|pplx-|csk-|phx_|ntn_)", rf"{_A}{{40,}}"),
    (r"r8_", rf"{_A}{{37,}}"),
    (r"nvapi-", rf"{_W}{{60,}}"),
    (r"(?:tgp_v1_|wandb_v1_)", rf"{_W}{{40,}}"),
    (r"fw_", rf"{_A}{{22,}}"),
    (r"pcsk_", r"[0-9A-Za-z_]{50,}"),
    (r"lsv2_(?:pt|sk)_", rf"{_X}{{32}}_{_X}{{10}}"),
    (r"tvly-", rf"{_W}{{24,}}"),
    (r"jina_", rf"{_W}{{50,}}"),
    (r"rpa_", r"[0-9A-Z]{40,}"),
    (r"a[ks]-", rf"{_A}{{22}}\b"),
    (r"pa-", rf"{_W}{{43}}\b"),
    (r"gh[oprsu]_", rf"{_A}{{36,}}"),
    (r"github_pat_", r"[0-9A-Za-z_]{22,}"),
    (r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas|imt|ffct|wt)-", rf"{_W}{{20,}}(?:\.{_W}+)*"),
    (r"GR1348941", rf"{_W}{{20}}"),
    (r"ATBB", rf"{_A}{{32}}"),
    (r"AT(?:ATT|CTT)3", r"[0-9A-Za-z_=-]{60,}"),
    (r"npm_", rf"{_A}{{36}}"),
    (r"pypi-AgE", rf"{_W}{{50,}}"),
    (r"rubygems_", rf"{_X}{{48}}"),
    (r"cio", rf"{_A}{{32}}\b"),
    (r"oy2", r"[a-z0-9]{43}\b"),
    (r"dckr_[op]at_", rf"{_W}{{27,}}"),
    (r"CLOJARS_", r"[a-z0-9]{60}"),
    (r"(?:AKCp|cmVmd)", rf"{_A}{{59,}}"),
    (r"xox[abceoprs]", r"(?:\.xox[bp])?-[0-9A-Za-z-]{10,}"),
    (r"xapp-[0-9]-", r"[0-9A-Za-z-]{10,}"),
    (r"SG\.", rf"{_W}{{22}}\.{_W}{{43}}"),
    (r"key-", rf"{_X}{{32}}\b"),
    (r"xkeysib-", rf"{_X}{{64}}-{_A}{{16}}"),
    (r"re_", rf"{_A}{{8}}_{_A}{{24}}"),
    (r"SK", rf"{_X}{{32}}\b"),
    (r"(?:rk|sk)_(?:live|test|prod)_", rf"{_A}{{10,}}"),
    (r"whsec_", r"[0-9A-Za-z+/]{24,}={0,2}"),
    (r"shp(?:at|ca|pa|ss|tka)_", r"[0-9a-fA-F]{32}"),
    (r"sq0[a-z]{3}-", rf"{_W}{{22,43}}"),
    (r"EAAA", rf"{_W}{{60}}"),
    (r"[0-9]{8,10}:AA", rf"{_W}{{33}}"),  # Telegram
    (r"[MNO][0-9A-Za-z_-]{23,25}\.", rf"{_W}{{6}}\.{_W}{{27,38}}"),  # Discord
    (r"glc_", r"[0-9A-Za-z+/]{32,}={0,2}"),
    (r"glsa_", rf"{_A}{{32}}_[0-9A-Fa-f]{{8}}"),
    (r"sntrys_eyJ", r"[0-9A-Za-z+/=_-]{50,}"),
    (r"sntryu_", rf"{_X}{{64}}"),
    (r"NRAK-", r"[A-Z0-9]{27}"),
    (r"NRII-", rf"{_W}{{32}}"),
    (r"PMAK-", rf"{_X}{{24}}-{_X}{{34}}"),
    (r"lin_(?:api|oauth)_", rf"{_A}{{32,}}"),
    (r"secret_", rf"{_A}{{43}}"),
    (r"pat", rf"{_A}{{14}}\.{_X}{{64}}"),
    (r"fig[dorhu]+_", rf"{_W}{{38,}}"),
    (r"CFPAT-", rf"{_W}{{43}}"),
    (r"sq[apu]_", rf"{_X}{{40}}"),
    (r"bk[a-z]{2}_", rf"{_X}{{40}}"),
    (r"CCI(?:PAT|PRJ)_", rf"{_W}{{40,}}"),
    (r"EZ[AT]K", rf"{_A}{{54}}"),
    (r"access-(?:sandbox|development|production)-", _UUID),
    (r"amzn\.mws\.", _UUID),
    (r"(?:duffel|shippo)_(?:live|test)_", rf"{_W}{{40,43}}"),
    (r"FLWSECK[_-]", r"[0-9A-Za-z_-]{32,}"),
    (r"sl\.(?:u\.)?", rf"{_W}{{100,}}"),
    (r"EAA[CMB]", rf"{_A}{{80,}}"),
    (r"A{20}", r"[0-9A-Za-z%]{50,}"),
    (r"[sp]k-lf-", _UUID),
    (r"AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    (r"rdme_", r"[a-z0-9]{70}"),
    (r"tfp_", r"[0-9A-Za-z_.-]{59}"),
    (r"pnu_", rf"{_A}{{36}}"),
    (r"sk\.eyJ", rf"{_W}{{40,}}\.{_W}{{20,}}"),  # Mapbox
    (r"ATTA", rf"{_X}{{64,}}"),
    (r"access_token\$(?:production|sandbox)\$", rf"[0-9a-z]{{16}}\${_X}{{32}}"),
    (r"bce-v3/ALTAK-", rf"{_A}{{21}}/{_X}{{40}}"),
    (r"hc[a-z]{2}k_", r"[0-9a-z]{50,}"),
    (rf"(?:sdk|api|mob)-{_X}{{8}}-", rf"(?:{_X}{{4}}-){{3}}{_X}{{12}}"),  # LaunchDarkly
    (r"AAAA[0-9A-Za-z_-]{7}:APA91b", rf"{_W}{{100,}}"),
    (r"[ps]k-helicone-", r"(?:eu-)?[0-9a-z]{7}(?:-[0-9a-z]{7}){3}"),
    (r"[0-2]/[0-9]{12,}(?:/[0-9]{12,})?:", rf"{_X}{{32}}\b"),  # Asana
    (r"rzp_(?:live|test)_", rf"{_A}{{14}}"),
    (r"(?:IQoJb3JpZ2luX2Vj|F[wQ]oGZXIvYXdz)", r"[0-9A-Za-z+/]{50,}={0,2}"),  # an AWS session
)
# What stands inside of one, the width of its head, and the whole, read from the inside.
_INFIXES: Final = (
    # A client of Entra, Azure AI, Azure DevOps, Terraform, Mailchimp.
    (r"[0-9]Q~", 3, rb"(?<=[0-9A-Za-z]{3})[0-9]Q~[0-9A-Za-z_~.-]{31,34}"),
    (r"JQQJ9", 52, rb"(?<=[0-9A-Za-z]{52})JQQJ9[0-9A-Za-z]{27}"),
    (r"AZDO", 76, rb"(?<=[0-9A-Za-z]{76})AZDO[0-9A-Za-z]{4}"),
    (r"\.atlasv1\.", 14, rb"(?<=[0-9A-Za-z]{14})\.atlasv1\.[0-9A-Za-z_-]{60,70}"),
    (r"-us[0-9]", 32, rb"(?<=\b[0-9a-f]{32})-us[0-9]{1,2}\b"),
)
# A value beside a name that says that it is secret; the check leaves the name out.
_NAMED: Final = (
    r"(?i)(?:secret|access|account|api|auth|private|client|app|consumer|subscription)"
    r"[_-]?(?:access[_-]?)?(?:key|token|secret)\W{1,8}[0-9a-z/+]{4}|\bsig=[0-9a-z%/+]{4}"
    r"|\bauthorization\W{1,8}(?:bearer|basic|token|ssws) [0-9a-z/+]{4}"
)
_VALUE: Final = re.compile(
    rb"(?i)sig=([0-9a-z%/+]{43,90}(?:=|%3d))"
    rb"|authorization\W{1,8}(?:basic ([0-9a-z/+]{16,}={0,2})|[a-z]+ ([0-9a-z._~/+-]{32,}={0,2}))"
    rb"|aws\w+\W{1,8}([0-9a-z/+]{40})(?![0-9a-z/+=])"
    rb"|secret_?access_?key\W{1,8}([0-9a-z/+]{40})(?![0-9a-z/+=])"
    rb"|(?:account|access)_?key\W{1,8}([0-9a-z/+]{40,90}={1,2})"
    rb"|[a-z_-]{4,40}\W{1,8}([0-9a-z]{32,64}\b|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b)"
)
_HOOKS: Final = (
    r"https://(?:hooks\.slack\.com/(?:services|workflows|triggers)/[0-9A-Za-z+/_-]{30,}"
    r"|(?:canary\.|ptb\.)?discord(?:app)?\.com/api/webhooks/[0-9]{16,}/[0-9A-Za-z_-]{60,}"
    r"|[0-9a-z.-]+\.webhook\.office\.com/webhookb2/[0-9A-Za-z@/_-]{60,})"
)
_URL: Final = r"[0-9A-Za-z]://[^\s/?#:@\"'<>\[\]]*:[^\s/?#@\"'<>\[\]]{3}"
_PASSWORD: Final = re.compile(rb"://([^:]{0,64}):([^\s/?#@\"'<>\[\]]{3,128})@[0-9A-Za-z\[]")
# What examples say instead of a password.
_STAND_INS: Final = re.compile(
    rb"(?i)(?:my|your|the|db|some|user|admin|test)?[_-]?(?:pass(?:word|wort|wd|phrase)?|pw|pwd|secret|token|auth|key"
    rb"|foo|bar|baz|test|guest|root|admin|user(?:name)?|postgres|mysql|example|changeme|xxx+|\*+|\.+)"
    rb"[_-]?[0-9]{0,4}|.*(?:[${}]|%(?![0-9A-Fa-f]{2})|\\).*|x+|\*+"
)


_FULL: Final = re.compile(
    "|".join(f"(?:{begin}{rest})" for begin, rest in _PREFIXED).encode(), re.ASCII
)
# No key has small letters alone.
_WORDS: Final = re.compile(rb"[a-z_-]+")
_AROUND: Final = tuple((width, re.compile(full)) for _, width, full in _INFIXES)


def _find_prefixed(text: bytes, start: int, end: int) -> Sequence[Span]:
    match = _FULL.match(text, start)
    return (match.span(),) if match is not None and not _WORDS.fullmatch(match[0]) else NOTHING


def _find_around(text: bytes, start: int, end: int) -> Sequence[Span]:
    for width, pattern in _AROUND:
        if match := pattern.match(text, start):
            return ((start - width, match.end()),)
    return NOTHING


_RANDOM: Final = re.compile(rb"[0-9A-Za-z]{16}")


def _require_random(text: bytes, start: int, end: int) -> Sequence[Span]:
    """Refuses names: words are more common than keys, and end after a few letters."""
    has_digit = any(is_digit(text, at) for at in range(start, end))
    return ((start, end),) if has_digit and _RANDOM.search(text, start, end) else NOTHING


def _find_value(text: bytes, start: int, end: int) -> Sequence[Span]:
    # The name of Amazon's key begins before the word that is searched for.
    begin = start - 4 if text[max(start - 4, 0) : start].lower() == b"aws_" else start
    match = _VALUE.match(text, begin)
    if match is None or not match.lastindex:
        return NOTHING
    value = match[match.lastindex]
    # A path or a long word has no digit.
    if not any(is_digit(value, at) for at in range(len(value))) or len(set(value)) < 4:
        return NOTHING
    return (match.span(match.lastindex),)


def _find_password(text: bytes, start: int, end: int) -> Sequence[Span]:
    match = _PASSWORD.match(text, start + 1)
    if match is None:
        return NOTHING
    name, password = match[1], match[2]
    if _STAND_INS.fullmatch(password) or password.lower() == name.lower():
        return NOTHING
    return (match.span(2),)


CREDENTIALS: Final = (
    Recogniser(
        compile_pattern(rf"\b(?:{'|'.join(begin for begin, _ in _PREFIXED)})"), _find_prefixed
    ),
    Recogniser(compile_pattern("|".join(infix for infix, _, _ in _INFIXES)), _find_around),
    Recogniser(compile_pattern(r"\bsk[-_][0-9A-Za-z_-]{20,}"), _require_random),
    Recogniser(compile_pattern(r"\beyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*")),
    Recogniser(compile_pattern(_HOOKS)),
    Recogniser(compile_pattern(_NAMED), _find_value),
    Recogniser(compile_pattern(_URL), _find_password),
    Recogniser(
        compile_pattern(
            r"Private-Lines: [0-9]+(?:(?:\s|\\[nr])+[0-9A-Za-z+/=]{16,})+"
            rf"|-----BEGIN {_PRIVATE_KEY}(?:\s|\\[nr])(?:{_PEM}*?-----END {_PRIVATE_KEY}|{_PEM}*)"
        )
    ),
)
