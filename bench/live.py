"""The live latency page of an installation of its own with the simulated engine, in headless Chromium.

    ./sluice bench live [--quick]

From a request's end to its paint; what 200 viewers and 256 replicas at 10 Hz cost web and telemetry; how long a repaint
takes; whether an hour's worth of updates (36,000) leaves the tab's heap as it was. `--quick`: a tenth of each.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from bench._bar import Bar
from bench._chromium import Tab
from bench._cpu import cpu_us, rss_bytes
from bench._figures import print_figure, say
from launcher.servers import valkey_url
from tests.journeys.installation import Installed, make_installed, phases_in, remove, wait_until

MODEL = "smollm2"
PAINT_LIMIT_S, REPAINT_LIMIT_MS, HEAP_LIMIT_RATIO = 1.0, 50.0, 1.1
WEB_LIMIT_CORES, INGEST_LIMIT_CORES, MEMORY_LIMIT_RATIO = 0.5, 0.3, 1.1
REQUESTS, WATCH_S, UPDATES, VIEWERS = 200, 60.0, 36_000, 200
WARM_UP_UPDATES, SETTLE_S = 600, 10.0
LISTEN = """
window.paints = []; window.repaints = [];
document.addEventListener("sluice:painted", ({ detail }) => {
  window.paints.push([Date.now() / 1000, detail.samples]); window.repaints.push(detail.paintMs);
}); 0
"""
UPDATE = """
(async () => {
  const [{ LiveWindow }, { Plane }] = await Promise.all([
    import("/static/js/lib/livewindow.js"), import("/static/js/lib/plane.js")]);
  const setup = JSON.parse(document.getElementById("latency-setup").textContent);
  const figure = await (await fetch(`${setup.api}?format=figure&step=1&from=` +
    new Date(Date.now() - 200000).toISOString())).json();
  const holder = document.querySelector("[data-plot]").cloneNode(true);
  document.querySelector("main").append(holder);
  const live = new LiveWindow({ ...setup, lowestS: setup.lowest_s, formatSeconds: String, nowWord: "now" });
  const plane = new Plane(holder, { describe: () => [], onArea() {}, onClear() {} });
  const rows = { count: 60, first: 230, perRow: 5 };
  const startS = Math.floor(Date.now() / 1000);
  window.update = async (from, count) => {
    const times = [];
    for (let n = from; n < from + count; n += 1) {
      const atS = startS + Math.floor(n / 10);
      const counts = new Uint32Array(60).fill(1 + n % 7);
      const column = { atS, samples: 60 + n % 10, quantiles: [0.1, 0.5, 1], counts };
      const kind = n ? "changes" : "whole";
      live.take({ kind, rows, seq: n, from: n - 1, columns: [column], nowS: atS + 1, sinceS: null, samples: 60 });
      const began = performance.now();
      await plane.draw(live.fill(figure, "count"));
      if (n % 10 === 0) {
        await new Promise((go) => requestAnimationFrame(() => {
          const { port1, port2 } = new MessageChannel(); port1.onmessage = go; port2.postMessage(0); }));
        times.push(performance.now() - began);
      }
    }
    return times;
  };
})()
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="sluice bench live", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of each")
    scale = 0.1 if parser.parse_args().quick else 1.0
    with tempfile.TemporaryDirectory(prefix="sl-") as name:
        folder = Path(name)
        installed = make_installed(folder / "var")
        tab = None
        try:
            say("starting an installation with the simulated engine")
            installed.up("--engine", "sim")
            wait_until(lambda: phases_in(installed.get("status/")) == ["ready"], limit_s=120, what="ready")
            cookie = sign_in(installed)
            tab = open_page(installed, cookie, folder / "chromium")
            good = measure_paint(installed, tab, max(20, round(REQUESTS * scale)))
            good &= measure_load(installed, cookie, max(10.0, WATCH_S * scale))
            good &= measure_heap(tab, round(UPDATES * scale))
            return 0 if good else 1
        finally:
            if tab is not None:
                tab.close()
            remove(installed)


def sign_in(installed: Installed) -> str:
    """The session's cookie, as `name=value`."""
    jar = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    url = f"http://127.0.0.1:{installed.web_port}/sign-in/"
    browser.open(url, timeout=10).read()
    token = next(cookie.value for cookie in jar if cookie.name.endswith("csrf"))
    fields = {"username": "admin", "password": installed.variables["SLUICE_ADMIN_PASSWORD"]}
    body = urllib.parse.urlencode(fields | {"csrfmiddlewaretoken": token or ""}).encode()
    browser.open(urllib.request.Request(url, data=body, headers={"Referer": url}), timeout=10).read()
    session = next(cookie for cookie in jar if not cookie.name.endswith("csrf"))
    return f"{session.name}={session.value}"


def open_page(installed: Installed, cookie: str, folder: Path) -> Tab:
    tab, (name, _, value) = Tab(folder), cookie.partition("=")
    url = f"http://127.0.0.1:{installed.web_port}"
    tab.call("Network.setCookie", name=name, value=value, url=url)
    tab.open(f"{url}/models/{MODEL}/latency/?stage=e2e")
    tab.wait("document.querySelector('[data-live-state=live]')")
    tab.run(LISTEN)
    return tab


def measure_paint(installed: Installed, tab: Tab, count: int) -> bool:
    """One request at a time, so that each paint is of a known one."""
    draw, delays, bar = random.Random(1), [], Bar()
    for number in range(count):
        time.sleep(draw.uniform(0.2, 1.2))
        before = tab.run("window.paints.at(-1)?.[1] ?? 0")
        answer = installed.chat(tokens=4, temperature=0.5, seed=number)
        ended_s = time.time()
        if answer.status != 200:
            raise RuntimeError(f"a request failed: {answer}")
        tab.wait(f"window.paints.some(([, samples]) => samples > {before})", limit_s=20)
        painted_s = tab.run(f"window.paints.find(([, samples]) => samples > {before})[0]")
        delays.append(max(0.0, painted_s - ended_s))
        tab.run("window.paints.splice(0, window.paints.length - 1).length")
        bar.show((number + 1) / count, f"{number + 1} requests")
    bar.end()
    print_figure("live", "request_end_to_paint_p50_s", round(quantile(delays, 0.5), 3), unit="s")
    worst = round(quantile(delays, 0.99), 3)
    return print_figure("live", "request_end_to_paint_p99_s", worst, unit="s", limit=PAINT_LIMIT_S)


def measure_load(installed: Installed, cookie: str, seconds: float) -> bool:
    span = str(seconds + SETTLE_S + 5)
    prefix = f"sluice:{installed.select('SELECT installation FROM pool_routingstate')[0][0]}"
    origin = f"http://127.0.0.1:{installed.web_port}"
    url = f"ws://127.0.0.1:{installed.web_port}/live/latency/{MODEL}/"
    redis_url = valkey_url(installed.layout.sockets)
    generator = start_load(
        "generate", "--redis", redis_url, "--prefix", prefix, "--model", MODEL, "--seconds", span
    )
    viewers = start_load(
        "view", "--url", url, "--origin", origin, "--cookie", cookie, "--viewers", str(VIEWERS), "--seconds", span
    )  # fmt: skip
    time.sleep(SETTLE_S)
    pids = {name: installed.find(name).pid for name in ("web", "telemetry")}
    before, memory = {name: cpu_us(pid) for name, pid in pids.items()}, rss_bytes(pids["web"])
    time.sleep(seconds)
    cores = {name: (cpu_us(pid) - before[name]) / 1e6 / seconds for name, pid in pids.items()}
    growth = rss_bytes(pids["web"]) / memory
    told = json.loads(viewers.communicate(timeout=120)[0]), json.loads(generator.communicate(timeout=120)[0])
    say(f"viewers {told[0]}, generator {told[1]}")
    good = print_figure("live", "viewers_lost", told[0]["lost"], unit="count", limit=0)
    print_figure("live", "frames_per_viewer_per_s", round(told[0]["least_per_s"], 2), unit="frames/s")
    good &= print_figure("live", "web_cpu_cores", round(cores["web"], 3), unit="cores", limit=WEB_LIMIT_CORES)
    good &= print_figure(
        "live", "ingest_cpu_cores", round(cores["telemetry"], 3), unit="cores", limit=INGEST_LIMIT_CORES
    )
    return good & print_figure(
        "live", "web_memory_ratio", round(growth, 3), unit="ratio", limit=MEMORY_LIMIT_RATIO
    )


def start_load(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench._live_load", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure_heap(tab: Tab, updates: int) -> bool:
    tab.run(UPDATE)
    times: list[float] = []
    tab.run(f"window.update(0, {WARM_UP_UPDATES})", timeout_s=300)
    before, bar = heap_bytes(tab), Bar()
    for start in range(WARM_UP_UPDATES, updates + WARM_UP_UPDATES, WARM_UP_UPDATES):
        times += tab.run(f"window.update({start}, {WARM_UP_UPDATES})", timeout_s=300)
        bar.show(min(1.0, start / updates), f"{start} updates")
    bar.end()
    good = print_figure(
        "live", "heatmap_paint_p99_ms", round(quantile(times, 0.99), 1), unit="ms", limit=REPAINT_LIMIT_MS
    )
    print_figure("live", "heatmap_paint_p50_ms", round(quantile(times, 0.5), 1), unit="ms")
    ratio = round(heap_bytes(tab) / before, 3)
    return good & print_figure("live", "heap_ratio", ratio, unit="ratio", limit=HEAP_LIMIT_RATIO)


def heap_bytes(tab: Tab) -> int:
    tab.call("HeapProfiler.enable")
    tab.call("HeapProfiler.collectGarbage")
    return int(tab.call("Runtime.getHeapUsage")["usedSize"])


def quantile(values: list[Any], share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


if __name__ == "__main__":
    sys.exit(main())
