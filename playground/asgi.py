"""The ASGI application: pages and HTTP API by Django, the playground's socket by Channels."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "playground.settings")
django_application = get_asgi_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.urls import path  # noqa: E402

from playground import engine_client  # noqa: E402
from playground.chat.consumers import PlaygroundConsumer  # noqa: E402

engine_client.warm_up()

sockets = URLRouter([path("ws/playground/", PlaygroundConsumer.as_asgi())])

application = ProtocolTypeRouter(
    {
        "http": django_application,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(sockets)),
    }
)
