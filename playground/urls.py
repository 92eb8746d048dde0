from django.contrib import admin
from django.urls import include, path

from playground import health
from playground.api import browser as keys
from playground.api import views as v1
from playground.chat import views
from playground.chat.api import api
from playground.sharing.views import links_page
from playground.usage import metrics as usage_metrics
from playground.usage import views as usage

handler400, handler500 = "playground.failures.bad_request", "playground.failures.server_error"

urlpatterns = [
    path("", views.playground_page, name="playground"),
    path("c/<uuid:conversation_id>", views.playground_page, name="conversation"),
    path("race", views.playground_page, name="race"),
    path("api/", api.urls),
    path("v1/", v1.api.urls),
    path("keys/", keys.keys_page, name="keys"),
    path("admin/", admin.site.urls),
    path("accounts/", include("playground.accounts.urls")),
    path("s/", include("playground.sharing.urls")),
    path("links/", links_page, name="links"),
    path("stats/", usage.stats, name="stats"),
    path("metrics", usage_metrics.metrics),
    path("sandbox/", include("playground.sandbox.urls")),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
]
