// The playground: one chat over one socket. Text enters by textContent; nothing is stored.

import { find, make, on, readJson, setText } from "../lib/dom.js";
import { formatMs, formatRate } from "../lib/format.js";

const root = find("[data-playground]");
const releases = readJson("releases") ?? {};
const texts = readJson("texts") ?? {};
const turns = find("#turns");
const failure = find("#failure");
const field = (id) => document.getElementById(id);
const history = [];
let socket = null;
let answer = null;

function fillReleases() {
  const list = field("release");
  list.replaceChildren(new Option(texts.plan, ""));
  for (const release of releases[field("model").value] ?? []) {
    const marks = [texts.release.replace("%s", release.number), release.version];
    if (release.simulated) marks.push(texts.simulated);
    if (!release.ready) marks.push(texts.none_ready);
    list.append(new Option(marks.join(" · "), release.number));
  }
}

function openSocket() {
  return new Promise((resolve, reject) => {
    if (socket && socket.readyState === WebSocket.OPEN) {
      resolve(socket);
      return;
    }
    const address = new URL(root.dataset.playground, window.location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(address);
    socket.addEventListener("open", () => resolve(socket), { once: true });
    socket.addEventListener("message", (event) => hear(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => {
      const words = event.code === 4401 || event.code === 4403 ? texts.signed_out : texts.cut;
      if (answer) fail({ message: words, code: `socket ${event.code}` });
      reject(new Error(words));
    });
  });
}

function addTurn(role, text) {
  find(".hint-turn")?.remove();
  const turn = make("li", { className: `turn ${role}` });
  const body = make("p", { text });
  turn.append(body);
  turns.append(turn);
  turn.scrollIntoView({ block: "end" });
  return body;
}

async function send(prompt) {
  history.push({ role: "user", content: prompt });
  addTurn("user", prompt);
  failure.hidden = true;
  answer = { text: "", body: addTurn("assistant waiting", texts.waiting) };
  setBusy(true);
  const system = field("system").value.trim();
  const pin = field("release").value;
  try {
    const open = await openSocket();
    open.send(JSON.stringify({
      type: "start",
      model: field("model").value,
      messages: system ? [{ role: "system", content: system }, ...history] : history,
      release: pin ? Number(pin) : null,
      max_tokens: field("max-tokens").value ? Number(field("max-tokens").value) : null,
      temperature: field("temperature").value ? Number(field("temperature").value) : null,
    }));
  } catch (error) {
    if (answer) fail({ message: error.message, code: "socket" });
  }
}

function hear(frame) {
  if (!answer) return;
  if (frame.type === "route") showRoute(frame);
  else if (frame.type === "text") append(frame.text);
  else if (frame.type === "done") finish(frame);
  else if (frame.type === "failed") fail(frame);
}

function append(text) {
  if (!answer.text) {
    answer.body.textContent = "";
    answer.body.parentElement.classList.remove("waiting");
  }
  answer.text += text;
  answer.body.append(document.createTextNode(text));
  const atEnd = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 80;
  if (atEnd) turns.scrollTop = turns.scrollHeight;
}

function showRoute({ release, replica, lane, request_id: request, simulated }) {
  setText(field("used-release"), release || "—");
  setText(field("used-replica"), replica || "—");
  setText(field("used-lane"), lane || "—");
  setText(field("request-id"), request || "—");
  field("simulated").hidden = !simulated;
}

function finish({ ttft_ms: ttft, tokens_per_s: rate, tokens, finish_reason: reason, total_ms: total }) {
  setText(field("ttft"), formatMs(ttft));
  setText(field("rate"), formatRate(rate));
  setText(field("tokens"), tokens === null ? "—" : String(tokens));
  setText(field("ended"), `${reason || "—"}, ${formatMs(total)}`);
  settle("");
}

function fail({ message, code, status }) {
  setText(find("[data-part=message]", failure), message);
  setText(find("[data-part=code]", failure), [status || "", code].filter(Boolean).join(" "));
  failure.hidden = false;
  settle(answer.text ? texts.cut : "");
}

/** Ends the answer: keeps what came, drops an empty one. */
function settle(mark) {
  const { body, text } = answer;
  answer = null;
  setBusy(false);
  if (!text) {
    body.parentElement.remove();
    history.pop();
    return;
  }
  history.push({ role: "assistant", content: text });
  if (mark) body.append(make("span", { className: "mark", text: mark }));
}

function stop() {
  socket?.send(JSON.stringify({ type: "stop" }));
  if (answer) settle(texts.stopped);
}

function setBusy(busy) {
  field("send").hidden = busy;
  field("stop").hidden = !busy;
}

function submit() {
  const prompt = field("prompt").value.trim();
  if (!prompt || answer) return;
  field("prompt").value = "";
  send(prompt);
}

if (root) {
  fillReleases();
  on(root, "change", "#model", fillReleases);
  on(root, "click", "#stop", stop);
  on(root, "click", "#clear", () => {
    if (answer) stop();
    history.length = 0;
    turns.replaceChildren();
    failure.hidden = true;
  });
  field("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  field("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  field("prompt").focus();
}
