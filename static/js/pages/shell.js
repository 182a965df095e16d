// What every page does: theme, dialogs, copying, ages, shortcuts, and the live feed where the page has one.

import { LiveCells } from "../lib/cells.js";
import { find, findAll, isTyping, on, readJson, setText } from "../lib/dom.js";
import { formatAge, setServerTime } from "../lib/format.js";
import { openFeed } from "../lib/socket.js";

const words = readJson("words") ?? {};
setServerTime(document.body.dataset.now ?? "");

on(document, "click", "[data-theme-toggle]", () => {
  const root = document.documentElement;
  const isDark = getComputedStyle(root).colorScheme === "dark"
    || (root.dataset.theme === undefined && window.matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("sluice-theme", root.dataset.theme);
  } catch {
    // The choice then holds for this page only.
  }
});

// On a phone the current tab may lie beyond the edge.
for (const current of findAll(".tabs [aria-current], .nav [aria-current]")) {
  const bar = current.parentElement;
  bar.scrollLeft = current.offsetLeft - (bar.clientWidth - current.clientWidth) / 2;
}

on(document, "click", "[data-open]", (button) => {
  const dialog = document.getElementById(button.dataset.open);
  if (dialog instanceof HTMLDialogElement) dialog.showModal();
});
on(document, "click", "[data-close]", (button) => button.closest("dialog")?.close());
on(document, "click", "[data-dismiss]", (button) => button.closest(".note")?.remove());
on(document, "click", "dialog", (dialog, event) => {
  if (event.target === dialog) dialog.close();
});

on(document, "click", "[data-copy]", async (button) => {
  const source = document.getElementById(button.dataset.copy);
  const label = find("span", button) ?? button;
  const before = label.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent.trim());
    setText(label, words.copied ?? "Copied");
  } catch {
    window.getSelection().selectAllChildren(source);
    setText(label, words.select ?? "Press Ctrl-C");
  }
  window.setTimeout(() => setText(label, before), 2000);
});

// A form is sent once, also when somebody clicks twice.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "1";
  window.setTimeout(() => delete event.target.dataset.sent, 4000);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  const search = find("[data-search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
});

on(document, "change", "[data-submit-on-change]", (element) => element.form.requestSubmit());

window.setInterval(() => {
  for (const time of findAll("time[data-age]")) {
    const iso = time.getAttribute("datetime");
    if (iso) setText(time, formatAge(iso, time.dataset.age));
  }
  paintState();
}, 1000);

const badge = find("main[data-live] [data-live-state]");
let feedState = { state: "connecting", at: null, since: null };

function paintState() {
  if (!badge) return;
  const { state, at, since } = feedState;
  badge.dataset.liveState = state;
  const age = formatAge(since ?? at, "for");
  const text = {
    connecting: words.connecting,
    live: words.live,
    stale: at || since ? words.stale.replace("%s", age) : words.connecting,
    lost: at ? words.lost.replace("%s", age) : words.unreachable,
    refused: words.refused,
  }[state];
  setText(badge, text ?? state);
}

const main = find("main[data-live]");
if (main) {
  const cells = new LiveCells(main);
  openFeed(main.dataset.live, {
    onCells: (change) => {
      cells.apply(change);
      document.dispatchEvent(new CustomEvent("sluice:cells", { detail: change }));
    },
    onState: (state) => {
      if (state.now) setServerTime(state.now);
      feedState = state;
      paintState();
      if (state.state === "refused") window.setTimeout(() => window.location.reload(), 1500);
    },
  });
}
