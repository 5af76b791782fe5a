"""The views of lists that operators have saved: a name for filters, a search and an order."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import User
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.api.errors import Conflict
from config.audit.triggers import Audit

MOST_VIEWS: Final = 30
"""Of one operator for one list."""
MOST_SHARED: Final = 20
"""Of one list, by all operators together: each reader sees them above the list."""
MOST_QUERY: Final = 2_000
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('causeway_shared_views ' || %s, 0))"


class TooManyViews(Conflict):
    error_type = "too_many_views"
    message = f"You have {MOST_VIEWS} views of this list. Delete one first; nothing was saved."


class TooManySharedViews(Conflict):
    error_type = "too_many_views"
    message = (
        f"Operators share {MOST_SHARED} views of this list, which is the limit. One of them must "
        "stop sharing a view first; nothing was changed."
    )


class NameTaken(Conflict):
    error_type = "name_taken"
    message = "Another view of this list has this name. Choose another one; nothing was changed."


class SavedViewManager(models.Manager["SavedView"]):
    def shared(self, page: str) -> models.QuerySet[SavedView]:
        """Returns the views of a list that operators share, but those of disabled operators."""
        return self.filter(page=page, is_shared=True, operator__is_active=True)

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
    """A view of the list of a model, which its operator alone changes.

    ``page`` is the full label of the model, and ``query`` the parameters of the list's address. The
    default view opens instead of the whole list, for its operator alone. A shared view is shown to
    every operator who may see the list; it grants nothing.
    """

    operator = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", db_index=False)
    page = models.CharField(max_length=100)
    name = models.CharField(max_length=60)
    query = models.TextField()
    is_default = models.BooleanField(default=False, db_default=False)
    is_shared = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    objects = SavedViewManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("operator", "page", "name"), name="saved_view_name"),
            models.UniqueConstraint(
                fields=("operator", "page"), condition=Q(is_default=True), name="saved_view_default"
            ),
        ]
        # Filters and searches may name people: the log says that they changed, and not to what.
        triggers = [Audit(masked=("query",), ignored=("is_default",))]

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

    def share(self) -> bool:
        """PRIVATE → SHARED. Shows the view to other operators; returns whether it was private.

        Raises :class:`TooManySharedViews`.
        """
        if self.is_shared:
            return False
        with transaction.atomic():
            # Operators who share views of one list wait for each other, so that the limit holds.
            with connection.cursor() as cursor:
                cursor.execute(_LOCK, [self.page])
            if SavedView.objects.shared(self.page).count() >= MOST_SHARED:
                raise TooManySharedViews
            self.is_shared = True
            self.save(update_fields=["is_shared"])
        return True

    def unshare(self) -> bool:
        """SHARED → PRIVATE. Shows the view to its operator alone; returns whether it was shared."""
        if not self.is_shared:
            return False
        self.is_shared = False
        self.save(update_fields=["is_shared"])
        return True

    def unmake_default(self) -> None:
        """Lets the whole list open again."""
        self.is_default = False
        self.save(update_fields=["is_default"])
