"""Imports the people and the API keys of an organization, all rows of a file or none.

An export writes the same formats, and an import of it changes nothing.

A file is CSV in UTF-8 with a header, or JSON lines with the same members. A row is found by its
natural key: the address of a member, the name of a key. What a row leaves out stays as it is, so a
second run changes nothing.

Secrets of new keys go to a file, which is written before the transaction ends: a key whose secret
was lost would be of no use. They are never printed.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import connection, transaction

from accounts.models import ApiKey, KeyDigest, Member, Organization, OrganizationLimit, Workspace
from accounts.models.members import WRITTEN_ROLES
from config.api.errors import Conflict, GatewayError
from config.api.text import CONTROL_CHARACTERS, parse_uuid
from config.bulk.cells import escape_formula, write_line
from config.bulk.problems import ImportRefused, Problems
from config.bulk.report import ColumnChange, Report, RowListener, RowOutcome
from config.bulk.rows import decode_lines, parse_csv_rows, parse_json_rows
from config.bulk.tables import format_usd
from config.credentials import Secret
from config.secrets import KeyDigests, may_be_key

MEMBERS: Final = "members"
KEYS: Final = "keys"
_MEMBER_COLUMNS: Final = ("email", "first_name", "last_name", "role")
_KEY_COLUMNS: Final = ("name", "email", "workspace", "limit")
MEMBERS_HEADER, KEYS_HEADER = (
    codecs.BOM_UTF8 + ",".join(columns).encode() + b"\r\n"
    for columns in (_MEMBER_COLUMNS, _KEY_COLUMNS)
)
_MOST_NAMES: Final = 20
# A byte order mark would be a part of the first name for scripts that read the file as UTF-8.
_OUTPUT_HEADER: Final = "name,email,workspace,hash,key\r\n"
_MOST_DOLLARS: Final = 1_000_000_000
_NANO: Final = Decimal("1e-9")
# Existing secrets are unique among all organizations.
_LOCK_SECRETS: Final = "SELECT pg_advisory_xact_lock(hashtextextended('causeway_secrets', 0))"

_Text = Annotated[str, msgspec.Meta(max_length=255)]


class _MemberRow(msgspec.Struct, forbid_unknown_fields=True):
    email: Annotated[str, msgspec.Meta(min_length=3, max_length=254)]
    first_name: _Text | None = None
    last_name: _Text | None = None
    name: _Text | None = None
    role: str | None = None
    workspace: _Text | None = None


class _KeyRow(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    email: str | None = None
    workspace: _Text | None = None
    limit: str | int | float | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class _PlannedKey:
    """A row of keys with what it names; ``stored`` is the key that has the name already."""

    row: _KeyRow
    stored: ApiKey | None
    workspace: Workspace
    creator: Member | None
    limit_nano: int | None


def import_members(
    organization_id: uuid.UUID,
    lines: Iterable[bytes],
    *,
    as_csv: bool,
    dry_run: bool = False,
    on_row: RowListener | None = None,
) -> Report:
    """Creates and changes the members of a file; raises :class:`ImportRefused`."""
    report = Report.of_kinds(MEMBERS, dry_run=dry_run)
    count = report.counter(on_row)
    problems = Problems()
    # Standard input may be slow: nothing is locked before it has ended.
    rows = list(_read(lines, _MemberRow, problems, as_csv=as_csv))
    with transaction.atomic():
        Organization.objects.lock(organization_id)
        workspaces = _find_workspaces(organization_id)
        _refuse_repeated([(line, row.email.lower()) for line, row in rows], "email", problems)
        for line, row in rows:
            for text in _find_member_problems(row, workspaces):
                problems.add(line, text)
        problems.raise_if_any()
        stored = {
            member.email.lower(): member
            for member in Member.objects.for_organization(organization_id)
        }
        for _, row in rows:
            workspace = None if row.workspace is None else workspaces[row.workspace]
            member = stored.get(row.email.lower())
            outcome, changes = _write_member(organization_id, row, member, workspace)
            count(MEMBERS, row.email, outcome, changes)
        transaction.set_rollback(dry_run)
    return report


def _write_member(
    organization_id: uuid.UUID, row: _MemberRow, stored: Member | None, workspace: Workspace | None
) -> tuple[RowOutcome, Sequence[ColumnChange]]:
    """Creates or changes one member, and lets it join the workspace."""
    values = {
        "first_name": row.first_name,
        "last_name": row.last_name,
        "role": None if row.role is None else row.role.removeprefix("org:"),
    }
    if row.name is not None:
        first, _, last = row.name.strip().partition(" ")
        values |= {"first_name": first, "last_name": last.strip() or None}
    values = {name: value for name, value in values.items() if value is not None}
    changes: list[ColumnChange] = []
    member, outcome = stored, RowOutcome.UNCHANGED
    if member is None:
        member = Member.objects.create(organization_id=organization_id, email=row.email, **values)
        outcome = RowOutcome.CREATE
    elif changes := [
        ColumnChange(name.replace("_", " "), getattr(member, name), value)
        for name, value in values.items()
        if getattr(member, name) != value
    ]:
        member.edit(**values)
        outcome = RowOutcome.UPDATE
    if workspace is not None and workspace.add_members([member]) and member is stored:
        outcome = RowOutcome.UPDATE
        changes = [*changes, ColumnChange("workspace", None, workspace.slug)]
    return outcome, changes


def _find_member_problems(row: _MemberRow, workspaces: dict[str, Workspace]) -> Iterator[str]:
    try:
        validate_email(row.email)
    except ValidationError:
        yield f"email: {row.email!r} is no address"
    if row.name is not None and (row.first_name, row.last_name) != (None, None):
        yield "name: leave it out beside first_name and last_name"
    if row.role is not None and row.role not in WRITTEN_ROLES:
        yield f"role: must be {' or '.join(Member.Role.values)}"
    if row.workspace is not None and row.workspace not in workspaces:
        yield _explain_workspace(row.workspace, workspaces)
    for name in ("first_name", "last_name", "name"):
        if CONTROL_CHARACTERS.search(getattr(row, name) or ""):
            yield f"{name}: must not contain control characters"


def import_keys(
    organization_id: uuid.UUID,
    lines: Iterable[bytes],
    *,
    as_csv: bool,
    output: str | None,
    dry_run: bool = False,
    on_row: RowListener | None = None,
) -> Report:
    """Creates and changes the inference keys of a file; raises :class:`ImportRefused`.

    ``output`` is the file to which the secrets of new keys are appended.
    """
    report = Report.of_kinds(KEYS, dry_run=dry_run)
    count = report.counter(on_row)
    problems = Problems()
    made: list[Sequence[str]] = []
    rows = list(_read(lines, _KeyRow, problems, as_csv=as_csv))
    with transaction.atomic():
        # A change of a key locks the organization after it.
        locked = ApiKey.objects.for_organization(organization_id).for_inference().lock_in_order()
        organization = Organization.objects.lock(organization_id)
        _refuse_repeated([(line, row.name) for line, row in rows], "name", problems)
        secret_rows = [(line, row.key) for line, row in rows if row.key is not None]
        if secret_rows:
            with connection.cursor() as cursor:
                cursor.execute(_LOCK_SECRETS)
        _refuse_repeated(secret_rows, "key", problems)
        planned = list(_plan_keys(organization_id, rows, problems))
        makes = any(each.stored is None and each.row.key is None for each in planned)
        if output is None and not dry_run and makes:
            problems.add_at(
                "--output", "name a file for the secrets of the keys: not every row has a key"
            )
        problems.raise_if_any()
        _require_room(organization, sum(each.stored is None for each in planned))
        for each in planned:
            outcome, changes = _write_key(each, locked, made)
            count(KEYS, each.row.name, outcome, changes)
        transaction.set_rollback(dry_run)
        if made and not dry_run:
            assert output is not None, "a row without a key needs an output"
            _append(output, made)
    return report


def _require_room(organization: Organization, added: int) -> None:
    """Raises :class:`ImportRefused` if the new keys would exceed the organization's limit."""
    present = ApiKey.objects.for_organization(organization.pk).current().count()
    try:
        organization.require_room(OrganizationLimit.KEYS, present, added)
    except GatewayError as exc:
        raise ImportRefused([exc.message]) from None


def _plan_keys(
    organization_id: uuid.UUID, rows: Sequence[tuple[int, _KeyRow]], problems: Problems
) -> Iterator[_PlannedKey]:
    """Yields the rows with what they name; adds a problem for each name that is unknown."""
    workspaces = _find_workspaces(organization_id)
    default = next((each for each in workspaces.values() if each.is_default), None)
    default = default or next(iter(workspaces.values()), None)
    members = {
        member.email.lower(): member for member in Member.objects.for_organization(organization_id)
    }
    stored: dict[str, list[ApiKey]] = {}
    keys = ApiKey.objects.for_organization(organization_id).for_inference().current()
    for key in keys.select_related("workspace").order_by("created_at"):
        stored.setdefault(key.name, []).append(key)
    owners = _find_owners(row.key for _, row in rows if row.key is not None)
    for line, row in rows:
        found = stored.get(row.name, [])
        workspace = workspaces.get(row.workspace) if row.workspace is not None else default
        member = None if row.email is None else members.get(row.email.lower())
        limit, texts = _read_limit(row.limit)
        if len(found) > 1:
            texts.append(f"name: {len(found)} keys are called {row.name!r}; rename all but one")
        if CONTROL_CHARACTERS.search(row.name):
            texts.append("name: must not contain control characters")
        if workspace is None:
            texts.append(_explain_workspace(row.workspace or "", workspaces))
        if row.email is not None and member is None:
            texts.append(f"email: there is no member {row.email!r}; import the members first")
        if row.key is not None and (text := _find_key_problem(row.key, owners, found)):
            texts.append(text)
        for text in texts:
            problems.add(line, text)
        if not texts and workspace is not None:
            yield _PlannedKey(row, found[0] if found else None, workspace, member, limit)


def _find_owners(keys: Iterable[str]) -> dict[str, ApiKey]:
    """Returns the row of the API key that has each secret, for those that a key has or had."""
    secrets = {digest: key for key in keys if may_be_key(key) for digest in KeyDigests(key)}
    rows = KeyDigest.objects.filter(digest__in=secrets).select_related("api_key")
    return {secrets[row.digest]: row.api_key for row in rows}


def _find_key_problem(key: str, owners: Mapping[str, ApiKey], found: Sequence[ApiKey]) -> str:
    """Returns why a secret cannot go on working; empty if it can. The text never repeats it."""
    if not may_be_key(key):
        return (
            "key: must have 20 to 512 visible ASCII characters and no comma, and an own one its "
            "checksum"
        )
    owner = owners.get(key)
    if owner is not None and [owner] != found:
        if owner.deleted_at is not None:
            return "key: this secret belongs to a deleted key, and works no more"
        if owner.successor_id in [each.pk for each in found]:
            return "key: this secret was replaced by a rotation of the key; leave it out"
        return "key: another key has this secret already"
    if owner is None and found:
        return "key: the key of this name has another secret; use another name"
    return ""


def _read_limit(limit: str | float | None) -> tuple[int | None, list[str]]:
    """Returns a limit in nano-USD, and the problems of its text."""
    if limit is None:
        return None, []
    try:
        dollars = Decimal(str(limit))
        # The size comes first: no context holds the largest exponents.
        if 0 <= dollars <= _MOST_DOLLARS and dollars == (nano := dollars.quantize(_NANO)):
            return int(nano.scaleb(9)), []
    except InvalidOperation:
        pass
    return None, [f"limit: must be USD from 0 to {_MOST_DOLLARS}, with at most 9 decimals"]


def _write_key(
    planned: _PlannedKey, locked: Collection[uuid.UUID], made: list[Sequence[str]]
) -> tuple[RowOutcome, Sequence[ColumnChange]]:
    """Creates a key, or changes a locked one; adds the line of a new secret to ``made``."""
    row, key = planned.row, planned.stored
    if key is None:
        imported = None if row.key is None else Secret(row.key)
        key, secret = ApiKey.objects.create_key(
            workspace=planned.workspace,
            name=row.name,
            limit_nano=planned.limit_nano,
            creator=planned.creator,
            secret=imported,
            issued_by_operator=True,
        )
        if imported is None:
            slug = planned.workspace.slug
            made.append((row.name, row.email or "", slug, key.digest, secret.reveal()))
        return RowOutcome.CREATE, ()
    changes: list[ColumnChange] = []
    values: dict[str, Any] = {}
    if row.workspace is not None and key.workspace_id != planned.workspace.pk:
        values["workspace_id"] = planned.workspace.pk
        changes.append(ColumnChange("workspace", key.workspace.slug, planned.workspace.slug))
    if row.limit is not None and key.limit_nano != planned.limit_nano:
        values["limit_nano"] = planned.limit_nano
        changes.append(
            ColumnChange("limit", _dollars(key.limit_nano), _dollars(planned.limit_nano))
        )
    if planned.creator is not None and key.creator_id != planned.creator.pk:
        values["creator_id"] = planned.creator.pk
        old = None if key.creator is None else key.creator.email
        changes.append(ColumnChange("member", old, planned.creator.email))
    if not changes:
        return RowOutcome.UNCHANGED, ()
    if key.pk not in locked:
        raise ImportRefused([f"name: {row.name!r} was created meanwhile; try again"])
    key.edit(**values)
    return RowOutcome.UPDATE, changes


def _dollars(nano: int | None) -> str | None:
    return None if nano is None else f"{format_usd(nano)} USD"


def _append(name: str, lines: Sequence[Sequence[str]]) -> None:
    """Appends the secrets to a file that its owner alone may read, and makes them durable.

    Raises ``OSError``; the file then ends as before.
    """
    text = [write_line(map(escape_formula, line)) for line in lines]
    descriptor = os.open(Path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    # A file that is only appended to begins at position 0, whatever it has.
    size = os.fstat(descriptor).st_size
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            if not size:
                text.insert(0, _OUTPUT_HEADER)
            file.write("".join(text).encode())
            file.flush()
            os.fsync(descriptor)
    except OSError:
        # A full disk has taken a part, even of a line.
        with contextlib.suppress(OSError):
            os.truncate(name, size)
        raise


def export_members(organization_id: uuid.UUID, *, as_csv: bool) -> Iterator[bytes]:
    """Yields the rows of a file, oldest member first.

    The workspace is left out: a member may be in several.
    """
    for member in Member.objects.for_organization(organization_id).order_by("created_at", "id"):
        values = (member.email, member.first_name, member.last_name, member.role)
        yield _encode(_MEMBER_COLUMNS, values, as_csv=as_csv)


def export_keys(organization_id: uuid.UUID, *, as_csv: bool) -> Iterator[bytes]:
    """Yields the rows of a file, oldest key first, without secrets.

    Raises :class:`Conflict` for names that several keys have, which an import could not tell apart.
    """
    rows = ApiKey.objects.for_organization(organization_id).for_inference().current()
    keys = list(rows.select_related("workspace", "creator").order_by("created_at", "id"))
    repeated = [name for name, count in Counter(key.name for key in keys).items() if count > 1]
    if repeated:
        raise Conflict(
            f"Several keys have the same name: {', '.join(map(repr, repeated[:_MOST_NAMES]))}"
            f"{' and others' if len(repeated) > _MOST_NAMES else ''}; rename all but one of each. "
            "Nothing was written."
        )
    for key in keys:
        values = (
            key.name,
            None if key.creator is None else key.creator.email,
            # The disabled keys of a deleted workspace are still there.
            None if key.workspace.deleted_at else key.workspace.slug,
            None if key.limit_nano is None else format_usd(key.limit_nano),
        )
        yield _encode(_KEY_COLUMNS, values, as_csv=as_csv)


def _encode(columns: Sequence[str], values: Sequence[str | None], *, as_csv: bool) -> bytes:
    """Returns a line of a file; what a row does not have is left out."""
    if as_csv:
        return write_line(escape_formula(value or "") for value in values).encode()
    members = {
        name: value for name, value in zip(columns, values, strict=True) if value is not None
    }
    return msgspec.json.encode(members) + b"\n"


def _read(
    lines: Iterable[bytes], shape: type[Any], problems: Problems, *, as_csv: bool
) -> Iterator[tuple[int, Any]]:
    texts = decode_lines(lines, problems)
    return (parse_csv_rows if as_csv else parse_json_rows)(texts, shape, problems)


def _refuse_repeated(keys: Iterable[tuple[int, str]], name: str, problems: Problems) -> None:
    first: dict[str, int] = {}
    for line, key in keys:
        if key in first:
            problems.add(line, f"{name}: the same as in line {first[key]}")
        first.setdefault(key, line)


def _find_workspaces(organization_id: uuid.UUID) -> dict[str, Workspace]:
    """Returns the workspaces of an organization by their ids and their slugs, oldest first."""
    rows = Workspace.objects.for_organization(organization_id).order_by("created_at", "id")
    return {name: row for row in rows for name in (str(row.pk), row.slug)}


def _explain_workspace(name: str, workspaces: dict[str, Workspace]) -> str:
    slugs = [slug for slug in workspaces if parse_uuid(slug) is None]
    return f"workspace: there is none with the slug or id {name!r}; there are {', '.join(slugs)}"
