from channels.generic.websocket import AsyncWebsocketConsumer


class PlaygroundConsumer(AsyncWebsocketConsumer):
    """The playground's socket, protocol v1."""
