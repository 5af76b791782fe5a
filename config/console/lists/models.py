"""The views of lists that operators have saved: a name for filters, a search and an order."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import User
from django.db import IntegrityError, models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.api.errors import Conflict

MOST_VIEWS: Final = 30
"""Of one operator for one list."""
MOST_QUERY: Final = 2_000


class TooManyViews(Conflict):
    error_type = "too_many_views"
    message = f"You have {MOST_VIEWS} views of this list. Delete one first; nothing was saved."


class NameTaken(Conflict):
    error_type = "name_taken"
    message = "Another view of this list has this name. Choose another one; nothing was changed."


class SavedViewManager(models.Manager["SavedView"]):
    def save_view(self, *, operator_id: Any, page: str, name: str, query: str) -> SavedView:
        """Stores a view, or replaces the filters of the operator's view of that name.

        Raises :class:`TooManyViews`.
        """
        with transaction.atomic():
            # Two requests of one operator wait for each other, so that the limit holds.
            User.objects.select_for_update(of=("self",)).get(pk=operator_id)
            mine = self.filter(operator_id=operator_id, page=page)
            if not mine.filter(name=name).exists() and mine.count() >= MOST_VIEWS:
                raise TooManyViews
            found, _ = self.update_or_create(
                operator_id=operator_id, page=page, name=name, defaults={"query": query}
            )
            return found


class SavedView(models.Model):
    """A view of the list of a model, which only its operator sees.

    ``page`` is the full label of the model, and ``query`` the parameters of the list's address. The
    default view opens instead of the whole list.
    """

    operator = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", db_index=False)
    page = models.CharField(max_length=100)
    name = models.CharField(max_length=60)
    query = models.TextField()
    is_default = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    objects = SavedViewManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("operator", "page", "name"), name="saved_view_name"),
            models.UniqueConstraint(
                fields=("operator", "page"), condition=Q(is_default=True), name="saved_view_default"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def rename(self, name: str) -> None:
        """Gives the view another name; raises :class:`NameTaken`."""
        self.name = name
        try:
            with transaction.atomic():
                self.save(update_fields=["name"])
        except IntegrityError as exc:
            raise NameTaken from exc

    def make_default(self) -> None:
        """Makes the view the one that opens by itself, in place of another one."""
        with transaction.atomic():
            User.objects.select_for_update(of=("self",)).get(pk=self.operator_id)
            others = SavedView.objects.filter(operator_id=self.operator_id, page=self.page)
            others.filter(is_default=True).update(is_default=False)
            self.is_default = True
            self.save(update_fields=["is_default"])

    def unmake_default(self) -> None:
        """Lets the whole list open again."""
        self.is_default = False
        self.save(update_fields=["is_default"])
