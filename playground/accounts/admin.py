"""People, groups, quotas and the site settings in the admin."""

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from playground.accounts.models import Quota, SiteSettings
from playground.accounts.services import account_delete

admin.site.login = secure_admin_login(admin.site.login)  # one door, which limits wrong passwords
admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):
    form, add_form, change_password_form = UserChangeForm, UserCreationForm, AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_staff", "date_joined", "last_login")
    actions = ("block", "unblock")

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        account_delete(user=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet) -> None:
        for user in queryset:
            account_delete(user=user)

    @admin.action(description="Block (signed out, keys stop, what runs is stopped)", permissions=["change"])
    def block(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set(request, queryset.exclude(pk=request.user.pk), block=True)

    @admin.action(description="Unblock", permissions=["change"])
    def unblock(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set(request, queryset, block=False)

    def _set(self, request: HttpRequest, users: QuerySet, block: bool) -> None:
        from playground.usage.services import admin_block

        changed = list(users.filter(is_active=block) if request.user.is_superuser else users.filter(is_active=block, is_superuser=False))
        for user in changed:
            admin_block(actor=request.user, user=user, block=block)
        self.message_user(request, f"{'Blocked' if block else 'Unblocked'} {len(changed)}.")


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):
    pass


@admin.register(Quota)
class QuotaAdmin(ModelAdmin):
    list_display = ("__str__", "applies_to", *Quota.LIMITS)
    autocomplete_fields = ("user", "group")


@admin.register(SiteSettings)
class SiteSettingsAdmin(ModelAdmin):
    """One row: the list leads straight to it."""

    def changelist_view(self, request: HttpRequest, extra_context: dict | None = None) -> HttpResponse:
        row, _ = SiteSettings.objects.get_or_create(pk=1)
        return HttpResponseRedirect(reverse("admin:accounts_sitesettings_change", args=[row.pk]))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False
