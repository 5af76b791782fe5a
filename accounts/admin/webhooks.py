"""The pages of subscriptions to events, and of their deliveries."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html

from accounts.admin.forms import may_point_secrets
from accounts.webhooks.models import Delivery, Subscription, choosable_kinds
from config.apps import event_kinds
from config.changes.deciding import hide_waiting
from config.console.actions import Message, bulk_action, deletion, report, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import render_page
from config.console.forms import ConsoleForm, part
from config.console.lists.filters import make_filter
from config.console.unfold import Dialog, SelectWidget, column, display
from config.credentials import Secret
from config.events.kinds import EventKind

_CHANGE: Final = "accounts.change_subscription"

_STATUSES = {
    "pending": "info", "delivered": "success", "failed": "danger", "held": "warning",
    "digested": "warning",
}  # fmt: skip


_NOT_SHOWN: Final = (
    "The secret is replaced. You may not see it. The owner gets another one by rotating it again: "
    "POST /webhooks/{id}/rotate-secret."
)


class SubscriptionForm(ConsoleForm):
    """Takes a receiver, and the kinds of events that are sent to it."""

    class Meta:
        help_texts = {"organization": "Empty: operators get the events of all organizations."}

    refusal_fields = {"invalid_webhook_url": "url"}
    kinds = forms.MultipleChoiceField(
        required=False,
        label="Events",
        widget=forms.CheckboxSelectMultiple,
        help_text="Tick the kinds of events to send. Tick none to send all, also those of later "
        "releases.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kinds" not in self.fields:
            return  # the page of an operator who may only look
        is_own = self.instance.pk is not None and self.instance.organization_id is not None
        kinds = choosable_kinds(by_operators=not is_own)
        choices = [(kind.name, _describe_kind(kind, is_own=is_own)) for kind in kinds]
        self.fields["kinds"].choices = choices  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        cleaned["kinds"] = cleaned.get("kinds") or None
        member, owner = cleaned.get("member"), cleaned.get("organization")
        if member is not None and owner is not None and member.organization_id != owner.pk:
            self.add_error("member", "The member belongs to another organization.")
        if "form" in cleaned:
            is_mail = cleaned["form"] == Subscription.Form.EMAIL
            for name in ("url",) if is_mail else ("member", "email"):
                if cleaned.get(name):
                    self.add_error(name, f"Leave it empty for the form {cleaned['form']}.")
        kinds = event_kinds()
        closed = [name for name in cleaned["kinds"] or () if kinds[name].for_operators]
        if owner is not None and closed:
            text = f"Organizations do not get {closed[0]}. Untick it, or name no organization."
            self.add_error("kinds", text)
        return cleaned

    def _post_clean(self) -> None:
        """Checks nothing of the row: its constraints need the sealed secret."""


def _describe_kind(kind: EventKind, *, is_own: bool) -> str:
    """Returns the text of a choice; a receiver that is added may still belong to operators."""
    text = f"{kind.name}: {kind.description}"
    return f"{text} Only for operators." if kind.for_operators and not is_own else text


class RotateWebhookDialog(Dialog):
    """Asks how long the old secret stays valid."""

    overlap = forms.ChoiceField(
        label="Sign with the old secret too for",
        choices=[
            ("86400", "a day"),
            ("3600", "an hour"),
            ("604800", "a week"),
            ("0", "no time: only the new one signs"),
        ],
        widget=SelectWidget(),
    )


class AddressDialog(Dialog):
    """Asks for another URL of a webhook or a chat."""

    url = forms.CharField(
        label="New URL",
        max_length=2048,
        help_text="Begins with https and has no query, at a public address.",
    )


OwnerFilter = make_filter(
    "owner",
    "owner",
    {
        "operators": ("operators", lambda rows: rows.filter(organization=None)),
        "organizations": ("organizations", lambda rows: rows.exclude(organization=None)),
    },
)


@admin.register(Subscription)
class SubscriptionAdmin(ConsoleAdmin):
    """Lists the receivers of events; one without an organization belongs to the operators."""

    form = SubscriptionForm
    own_permission = "accounts.change_byokcredential"
    list_display = ("shown_name", "form", "receiver", "status", "organization", "created_at")
    list_select_related = ("organization", "member")
    list_filter = ("form", "disabled", OwnerFilter)
    search_fields = ("name", "url", "email", "organization__name")
    uuid_search_fields = ("id", "organization_id", "member_id")
    autocomplete_fields = ("organization", "member")
    actions_detail = ("send_test", "move", "rotate", "enable", "disable", "remove")
    empty_hint = "Add a webhook, a chat or a mail address to send events to."
    add_fieldsets = (
        part(None, "organization", "form", "name"),
        part(
            "Receiver",
            "url",
            "member",
            "email",
            note="A webhook and a chat need a URL. Mail of an organization goes to "
            "one of its members; mail to operators needs an address.",
        ),
        part("Events", "kinds"),
    )
    fieldsets = (
        part(None, ("name", "form"), ("organization", "receiver"), "status"),
        part("Events", "kinds"),
        part("Deliveries", ("failures", "failing_since"), ("retry_at", "mean_ms"), "log"),
        part("Record", "id", "previous_until", ("created_at", "updated_at"), folded=True),
    )
    fixed_fields = ("form", "organization")

    def offers_action(self, request: HttpRequest, obj: Subscription, name: str) -> bool:
        offered = {
            "send_test": not obj.disabled,
            "move": obj.form != Subscription.Form.EMAIL,
            "rotate": obj.form == Subscription.Form.WEBHOOK,
            "enable": obj.disabled,
            "disable": not obj.disabled,
        }
        return offered.get(name, True)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj else self.add_fieldsets

    shown_name = column("Name", lambda row: str(row), ordering="name")
    receiver = column("Receiver", lambda row: row.receiver)

    @display(
        description="Status",
        label={"on": "success", "failing": "warning", "disabled": "danger"},
    )
    def status(self, row: Subscription) -> str:
        if row.disabled:
            return "disabled"
        return "failing" if row.failures else "on"

    @display(description="Log")
    def log(self, row: Subscription) -> str:
        address = reverse("admin:accounts_delivery_changelist")
        link = format_html(
            '<a class="underline" href="{}?subscription__id__exact={}">Deliveries</a>',
            address, row.pk,
        )  # fmt: skip
        if row.disabled_reason:
            return format_html("{} {}", row.disabled_reason, link)
        return link

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Subscription:
        given = form.cleaned_data
        row, secret = Subscription.objects.create_subscription(
            organization=given["organization"],
            form=given["form"],
            name=given["name"],
            url=given["url"],
            email=given["email"],
            member=given["member"],
            kinds=given["kinds"],
        )
        # Only the response to this request shows the secret; see response_add.
        obj.issued_secret = secret
        return row

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        secret: Secret | None = obj.__dict__.pop("issued_secret")
        if secret is None:
            return super().response_add(request, obj, post_url_continue)
        return self._show_secret(request, obj, secret, title="Webhook created")

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        names = {"name", "kinds"}.intersection(form.changed_data)
        Subscription.objects.get(pk=obj.pk).edit(
            **{name: form.cleaned_data[name] for name in names}
        )

    def _show_secret(
        self, request: HttpRequest, row: Any, secret: Secret, *, title: str
    ) -> HttpResponse:
        """Returns a page with a secret, without a redirect: its message would be a cookie."""
        return render_page(
            self,
            request,
            "admin/accounts/subscription/issued.html",
            title,
            headers={"Cache-Control": "no-store"},
            row=row,
            secret=secret.reveal(),
            next=self.url_of(request, row),
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Returns whether the operator may see the new secret, and where the events go."""
        return super().has_add_permission(request) and may_point_secrets(request)

    def has_point_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        may_edit = request.user.has_perm(_CHANGE)
        return may_edit and may_point_secrets(request)

    @transition("Send a test", submit="Send", permission=_CHANGE, icon="send")
    def send_test(self, request: HttpRequest, row: Subscription, form: Any) -> Message:
        """Sends an event of the kind webhook.test. The log shows the result."""
        row.send_test()
        return messages.SUCCESS, "The test is on its way. The log of deliveries shows the result."

    @transition(
        "Change the URL", submit="Change", permission="point", icon="link", form=AddressDialog
    )
    def move(self, request: HttpRequest, row: Subscription, form: Any) -> Message:
        """Sends events to another URL, also those that wait. Its secret stays the same."""
        is_moved = row.edit(url=form.cleaned_data["url"])
        return report(is_moved, "Events go to the new URL.", "Events went to this URL already.")

    @transition(
        "Rotate the secret",
        submit="Rotate",
        permission=_CHANGE,
        icon="autorenew",
        form=RotateWebhookDialog,
    )
    def rotate(self, request: HttpRequest, row: Subscription, form: Any) -> Message | HttpResponse:
        """Makes a new secret for the signatures of a webhook."""
        secret = row.rotate(overlap=int(form.cleaned_data["overlap"]))
        if may_point_secrets(request):
            return self._show_secret(request, row, secret, title="Secret rotated")
        return messages.SUCCESS, _NOT_SHOWN

    @transition("Disable", submit="Disable", permission=_CHANGE, icon="block")
    def disable(self, request: HttpRequest, row: Subscription, form: Any) -> Message:
        """Nothing more is sent. Events that wait are sent when you enable it again."""
        return report(row.disable(), "The subscription is disabled.", "It was disabled already.")

    @transition("Enable", submit="Enable", permission=_CHANGE, icon="play_arrow")
    def enable(self, request: HttpRequest, row: Subscription, form: Any) -> Message:
        """Sends the events that wait, and all new ones."""
        return report(row.enable(), "The subscription is enabled.", "It was enabled already.")

    remove = deletion(
        "Deletes the receiver, its secret and the log of its deliveries.",
        permission="accounts.delete_subscription",
        done="The subscription is deleted.",
    )


@admin.register(Delivery)
class DeliveryAdmin(ConsoleAdmin):
    """Shows the deliveries of the last 30 days, newest first; any of them can be sent again."""

    is_read_only = True
    own_permission = "accounts.change_byokcredential"
    list_display = (
        "created_at", "kind", "receiver", "shown_status", "attempts", "error", "organization",
    )  # fmt: skip
    list_display_links = ("created_at",)
    list_select_related = ("event", "subscription__member", "organization")
    list_filter = ("status",)
    search_fields = ("=error",)
    search_help_text = "The ID of a delivery, an event, a subscription or an organization."
    uuid_search_fields = ("id", "event_id", "subscription_id", "organization_id")
    linked_lookups = ("organization__id__exact", "subscription__id__exact")
    ordering = ("-id",)
    sortable_by = ()
    actions = ("redeliver_selected",)
    actions_detail = ("redeliver",)
    fieldsets = (
        part(None, ("kind", "shown_status"), ("receiver", "organization"), "sentence"),
        part(
            "Last attempt",
            ("attempts", "next_attempt_at"),
            ("response_status", "duration_ms"),
            "error",
        ),
        part("Record", "id", "webhook_id", ("created_at", "delivered_at")),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return hide_waiting(super().get_queryset(request), request, event="event__")

    kind = column("Event", lambda delivery: delivery.event.kind)
    webhook_id = column("Event ID (webhook-id)", lambda delivery: str(delivery.event_id))
    receiver = column("Receiver", lambda delivery: delivery.subscription.receiver)

    @display(description="Sentence")
    def sentence(self, delivery: Delivery) -> str:
        kind = event_kinds().get(delivery.event.kind)
        return delivery.event.kind if kind is None else kind.sentence(delivery.event.data)

    shown_status = column("Status", lambda delivery: delivery.status, label=_STATUSES)

    @transition("Send again", submit="Send again", permission=_CHANGE, icon="replay")
    def redeliver(self, request: HttpRequest, delivery: Delivery, form: Any) -> Message:
        """Sends the event again, with the same webhook-id."""
        delivery.redeliver(by_operator=True)
        return messages.SUCCESS, "The event is sent again within seconds."

    @bulk_action("Send again", permission=_CHANGE)
    def redeliver_selected(self, request: HttpRequest, delivery: Delivery) -> None:
        """Sends these events again, each with its own webhook-id."""
        delivery.redeliver(by_operator=True)
