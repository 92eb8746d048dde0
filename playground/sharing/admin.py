"""Links in the admin, without their content; "revoke" goes into the audit log."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from playground.sharing.models import ShareLink


@admin.register(ShareLink)
class ShareLinkAdmin(ModelAdmin):
    list_display = ("title", "state", "user", "scope", "views", "created_at", "expires_at")
    list_select_related = ("user",)
    search_fields = ("title", "user__email")
    exclude = ("snapshot", "conversation")
    readonly_fields = ("token", "state")
    actions = ("revoke",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).defer("snapshot")

    @admin.action(description="Revoke", permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet) -> None:
        from playground.usage.services import admin_revoke_link

        links = list(queryset.existing().filter(revoked_at=None))
        for link in links:
            admin_revoke_link(actor=request.user, link=link)
        self.message_user(request, f"Revoked {len(links)}.")
