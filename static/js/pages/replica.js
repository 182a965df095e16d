// The replica's page: its log as text, followed to the end while the box is ticked.

import { find } from "../lib/dom.js";

const log = find("#log");
const follow = find("#follow");
const NEAR_END_PX = 24;

function scrollToEnd() {
  if (follow.checked) log.scrollTop = log.scrollHeight;
}

function showLog(text) {
  const before = log.textContent;
  if (text === before) return;
  // Appending keeps a selection; a tail that has moved on is set anew.
  if (text.startsWith(before)) log.append(document.createTextNode(text.slice(before.length)));
  else log.textContent = text;
  scrollToEnd();
}

document.addEventListener("sluice:cells", ({ detail }) => {
  if (detail.set.log !== undefined) showLog(detail.set.log ?? "");
});

// Scrolling up means reading: stop following; back at the end, follow again.
log.addEventListener("wheel", () => {
  window.requestAnimationFrame(() => {
    follow.checked = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  });
}, { passive: true });
follow.addEventListener("change", scrollToEnd);
scrollToEnd();
