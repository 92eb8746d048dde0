"""Usage in the admin: generations with "cancel", rollups and the audit log to read."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from playground.chat.models import Generation
from playground.usage import services
from playground.usage.models import AuditEntry, UsageRollup


class ReadOnly(ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False


@admin.register(Generation)
class GenerationAdmin(ReadOnly):
    """Figures only: texts of chats are not shown."""

    list_display = ("created_at", "model", "state", "source", "user", "completion_tokens", "decode_tokens_per_s", "error_code")
    list_filter = ("state", "source", "model")
    list_select_related = ("user",)
    show_full_result_count = False
    exclude = ("request", "system_prompt", "trace", "message", "conversation")
    date_hierarchy = None
    actions = ("cancel",)

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).defer("request", "system_prompt", "trace")

    @admin.action(description="Cancel (what was made is kept)", permissions=["view"])
    def cancel(self, request: HttpRequest, queryset: QuerySet) -> None:
        running = list(queryset.active())
        for generation in running:
            services.admin_cancel(actor=request.user, generation=generation)
        self.message_user(request, f"Cancelled {len(running)}; the others had ended.")


@admin.register(UsageRollup)
class UsageRollupAdmin(ReadOnly):
    list_display = ("start", "period", "kind", "subject", "model", "source", "requests", "completion_tokens", "failed")
    list_filter = ("period", "kind", "source")
    show_full_result_count = False


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnly):
    list_display = ("at", "actor_name", "action", "target", "detail")
    list_filter = ("action",)
    search_fields = ("actor_name", "target", "detail")
