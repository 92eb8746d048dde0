"""Keys in the admin: who has which, limits of each, revoking. The secret is nowhere."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from playground.api.models import ApiKey
from playground.usage.services import admin_revoke_key


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    list_display = ("name", "prefix", "user", "state", "created_at", "expires_at", "last_used_at")
    list_filter = ("revoked_at", "expires_at")
    search_fields = ("name", "prefix", "user__username", "user__email")
    list_select_related = ("user",)
    readonly_fields = ("user", "prefix", "created_at", "revoked_at", "last_used_at")
    fields = (
        *("name", "prefix", "user", "scopes", "expires_at", "created_at", "revoked_at", "last_used_at"),
        *("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent"),
    )
    actions = ("revoke",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # made by their owners, who see the key once; or by `manage.py create_api_key`

    @admin.action(description="Revoke the chosen keys")
    def revoke(self, request: HttpRequest, queryset: QuerySet) -> None:
        for key in queryset:
            admin_revoke_key(actor=request.user, key=key)
