"""Routes of the sockets: wiring only."""

from __future__ import annotations

from django.urls import re_path

from console.live.consumers import LiveConsumer
from console.live.playground import PlaygroundConsumer

websocket_urlpatterns = [
    re_path(r"^live/playground/$", PlaygroundConsumer.as_asgi()),
    re_path(r"^live/(?P<screen>[a-z]+)/$", LiveConsumer.as_asgi()),
    re_path(r"^live/(?P<screen>[a-z]+)/(?P<argument>[A-Za-z0-9._:=&-]{1,200})/$", LiveConsumer.as_asgi()),
]
