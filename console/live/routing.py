"""Routes of the sockets: wiring only."""

from __future__ import annotations

from django.urls import re_path

from console.live.block_maps import BlockMapConsumer
from console.live.consumers import LiveConsumer
from console.live.heatmap_consumer import HeatmapConsumer
from console.live.playground import PlaygroundConsumer

websocket_urlpatterns = [
    re_path(r"^live/blocks/(?P<replica>[a-z0-9]{1,16})/$", BlockMapConsumer.as_asgi()),
    re_path(r"^live/playground/$", PlaygroundConsumer.as_asgi()),
    re_path(r"^live/latency/(?P<model>[A-Za-z0-9._-]{1,63})/$", HeatmapConsumer.as_asgi()),
    re_path(r"^live/(?P<screen>[a-z]+)/$", LiveConsumer.as_asgi()),
    re_path(r"^live/(?P<screen>[a-z]+)/(?P<argument>[A-Za-z0-9._:=&-]{1,200})/$", LiveConsumer.as_asgi()),
]
