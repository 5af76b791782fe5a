"""Cells: installations that share a catalogue and a host name, and divide the organizations.

The home cell is called ``home`` and has no row. The tables of cells and of the directory are empty
in an installation without other cells, save for the directory's rows of its own organizations.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import pgtrigger
from django.core.validators import RegexValidator
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.api.errors import Unavailable
from config.audit.triggers import Audit
from config.cells import CELL_NAME, HOME, MAX_NAME
from config.models import StampField
from config.sql import KEPT_ELSEWHERE
from config.triggers import Trigger

HOME_SHARD: Final = "00"
# Crockford's alphabet, without letters that people confuse with digits.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_SHARD_LENGTH: Final = 2
_RANDOM_LENGTH: Final = 6
CODE_LENGTH: Final = _SHARD_LENGTH + _RANDOM_LENGTH
REFUSE_MOVING: Final = (
    "RAISE EXCEPTION 'the organization is moving to another cell; try again in a minute'\n"
    f"    USING ERRCODE = '{KEPT_ELSEWHERE}';"
)
# Each cell numbers its rows from its number times this, so that no id exists in two cells.
IDS_OF_A_CELL: Final = 2**43


class Residence(models.TextChoices):
    """Whether an organization lives in this cell; only ``HERE`` serves its requests.

    HERE → LEAVING → LEFT in the cell that it leaves, ARRIVING → HERE in the one that it reaches.
    LEAVING → HERE when the move is given up.
    """

    HERE = "here", "here"
    LEAVING = "leaving", "leaving"
    LEFT = "left", "left"
    ARRIVING = "arriving", "arriving"


class OrganizationElsewhere(Unavailable):
    """The organization is on its way to another cell, or lives there already.

    It is no 421, which SDKs do not repeat: a proxy with a new map reaches the right cell.
    """

    error_type = "organization_moving"
    message = "The organization is moving to another cell; repeat the request in a few seconds."


def require_here(residence: str) -> None:
    """Raises :class:`OrganizationElsewhere` unless the organization lives in this cell."""
    if residence != Residence.HERE:
        raise OrganizationElsewhere


def make_code(shard: str) -> str:
    """Returns a random routing code; its shard tells the cell in which the organization began."""
    return shard + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))


def number_of_shard(shard: str) -> int:
    """Returns the number from 0 to 1,023 that a shard stands for."""
    return _ALPHABET.index(shard[0]) * len(_ALPHABET) + _ALPHABET.index(shard[1])


class CellManager(models.Manager["Cell"]):
    def create_cell(self, *, name: str, base_url: str) -> Cell:
        """Creates a cell with the lowest shard that no cell has."""
        with transaction.atomic(), transaction.get_connection().cursor() as cursor:
            cursor.execute("LOCK TABLE accounts_cell IN SHARE ROW EXCLUSIVE MODE")
            taken = {HOME_SHARD, *self.values_list("shard", flat=True)}
            shard = next(
                shard
                for shard in (first + second for first in _ALPHABET for second in _ALPHABET)
                if shard not in taken
            )
            return self.create(name=name, base_url=base_url, shard=shard)


class Cell(models.Model):
    """Another cell than the home cell; the home cell's rows are replicated to all cells.

    Codes of organizations that are created in the cell begin with its shard, which never changes.
    """

    name = models.CharField(
        primary_key=True,
        max_length=MAX_NAME,
        validators=[RegexValidator(rf"\A{CELL_NAME}\Z", "Use a-z, 0-9 and hyphens.")],
        help_text="The value of CELL in the cell's environment; it cannot be changed later.",
    )
    base_url = models.URLField(
        "base URL", max_length=255, help_text="Where operators reach the cell's own console."
    )
    shard = models.CharField(
        max_length=_SHARD_LENGTH,
        unique=True,
        editable=False,
        help_text="The first two characters of the routing codes that the cell gives out.",
    )
    created_at = StampField(auto_now_add=True)

    objects = CellManager()

    class Meta:
        ordering = ("shard",)
        constraints = [
            models.CheckConstraint(
                condition=~Q(name=HOME) & ~Q(shard=HOME_SHARD), name="cell_is_not_home"
            ),
        ]
        triggers = [Audit(key="name")]

    def __str__(self) -> str:
        return self.name


class CellIdentityManager(models.Manager["CellIdentity"]):
    def shard(self) -> str:
        """Returns the shard of the cell that this database belongs to."""
        return self.values_list("shard", flat=True).first() or HOME_SHARD


class CellIdentity(models.Model):
    """The cell that this database belongs to: one row, or none in the home cell.

    ``join_cell`` writes it. It is not replicated. ``fingerprint`` tells whether two cells have the
    same peppers and credential keys, without telling anything about them.
    """

    id = models.SmallIntegerField(primary_key=True, default=1, editable=False)
    name = models.CharField(max_length=MAX_NAME)
    shard = models.CharField(max_length=_SHARD_LENGTH)
    fingerprint = models.CharField(max_length=64, default="", db_default="")
    joined_at = models.DateTimeField(db_default=Now())

    objects = CellIdentityManager()

    class Meta:
        default_permissions = ()
        constraints = [models.CheckConstraint(condition=Q(id=1), name="cell_identity_is_one_row")]

    def __str__(self) -> str:
        return self.name


class CellBeat(models.Model):
    """The last sign of life of a cell, which replication carries to the cells that it feeds.

    ``work`` writes the row of its own cell: the home cell's goes to all others, theirs to it.
    """

    cell = models.CharField(primary_key=True, max_length=MAX_NAME)
    beat_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.cell


class DirectoryEntry(models.Model):
    """An organization in the directory of all cells: which cell it lives in.

    A trigger of each cell writes the rows of its organizations, and replication carries them to the
    home cell, whose console and whose ``cell_map`` read them.
    """

    id = models.CharField(primary_key=True, max_length=80, help_text="The cell and the id.")
    cell = models.CharField(max_length=MAX_NAME)
    organization_id = models.UUIDField()
    name = models.CharField(max_length=255)
    slug = models.CharField(max_length=64)
    code = models.CharField(max_length=CODE_LENGTH, null=True)
    residence = models.CharField(max_length=16, choices=Residence)

    class Meta:
        verbose_name = "organization of a cell"
        verbose_name_plural = "organizations of all cells"
        ordering = ("name", "id")
        indexes = [
            models.Index(fields=("organization_id",), name="directory_by_organization"),
            models.Index(fields=("code",), name="directory_by_code"),
            models.Index(fields=("name", "id"), name="directory_by_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} in {self.cell}"


class StayStill(Trigger):
    """Refuses to change a row of an organization that is moving to another cell, or has left.

    The move compares its copy while it locks the organization. So a change is either in the copy,
    or it waits for that lock and is refused. ``through`` names the foreign key to the parent, for
    rows without an organization of their own.
    """

    when = pgtrigger.Before

    def __init__(
        self,
        operation: pgtrigger.Operation = pgtrigger.Insert | pgtrigger.Update | pgtrigger.Delete,
        *,
        through: str = "",
    ) -> None:
        self._through = through
        super().__init__(name="stay_still", operation=operation)

    def get_declare(self, model: Any) -> list[tuple[str, str]]:
        return [("found", "text")]

    def get_func(self, model: Any) -> str:
        owner = "coalesce(NEW.organization_id, OLD.organization_id)"
        if self._through:
            field = model._meta.get_field(self._through)
            parent = field.related_model._meta
            owner = (
                f"(SELECT organization_id FROM {parent.db_table} "  # noqa: S608 - names of tables
                f"WHERE id = coalesce(NEW.{field.column}, OLD.{field.column}))"
            )
        return (
            "SELECT residence INTO found FROM accounts_organization\n"  # noqa: S608 - a sentence
            f"WHERE id = {owner} FOR KEY SHARE;\n"
            "IF found <> 'here' THEN\n"
            f"    {REFUSE_MOVING}\n"
            "END IF;\n"
            "RETURN coalesce(NEW, OLD);"
        )


class ListInDirectory(Trigger):
    """Keeps the directory's row of an organization of this cell."""

    when = pgtrigger.After
    func = (
        "IF TG_OP = 'DELETE' THEN\n"
        "    DELETE FROM accounts_directoryentry WHERE id = here || ':' || OLD.id;\n"
        "    RETURN NULL;\n"
        "END IF;\n"
        "INSERT INTO accounts_directoryentry\n"
        "    (id, cell, organization_id, name, slug, code, residence)\n"
        "VALUES (\n"
        "    here || ':' || NEW.id, here, NEW.id, NEW.name, NEW.slug, NEW.code, NEW.residence\n"
        ")\n"
        "ON CONFLICT (id) DO UPDATE SET\n"
        "    name = excluded.name, slug = excluded.slug, code = excluded.code,\n"
        "    residence = excluded.residence;\n"
        "RETURN NULL;"
    )

    def get_declare(self, model: object) -> list[tuple[str, str]]:
        here = f"coalesce((SELECT name FROM accounts_cellidentity), '{HOME}')"  # noqa: S608
        return [("here", f"text := {here}")]
