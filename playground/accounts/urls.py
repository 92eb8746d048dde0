from django.urls import include, path

from playground.accounts import views

urlpatterns = [
    path("", views.overview, name="account"),
    path("export", views.export, name="account_export"),
    path("delete", views.delete, name="account_delete"),
    path("", include("allauth.account.urls")),
]
