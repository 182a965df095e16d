// A socket of whole frames: text as JSON, bytes as they are. A lost frame harms nothing, the next one is whole.
// Silence counts as lost; reconnects with back-off.

const SILENCE_MS = 7000;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10000;
const ENDS = new Set([4401, 4403, 4404]);

/** `onBytes(buffer)`, `onText(object)`, `onLost(code)`; a refused or unknown socket is not tried again. Returns `{send, close}`. */
export function openFrames(path, { onBytes, onText, onLost }) {
  let socket = null;
  let heardAt = Date.now();
  let retryMs = FIRST_RETRY_MS;
  let retry = null;

  function connect() {
    const address = new URL(path, window.location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const opened = new WebSocket(address);
    opened.binaryType = "arraybuffer";
    socket = opened;
    heardAt = Date.now();
    opened.addEventListener("message", ({ data }) => {
      if (opened !== socket) return;
      heardAt = Date.now();
      retryMs = FIRST_RETRY_MS;
      if (data instanceof ArrayBuffer) onBytes(data);
      else onText(JSON.parse(data));
    });
    opened.addEventListener("close", ({ code }) => closed(opened, code));
  }

  function closed(which, code) {
    if (which !== socket) return;
    socket = null;
    onLost(code);
    if (ENDS.has(code)) return;
    retry = window.setTimeout(connect, retryMs * (0.7 + Math.random() * 0.6));
    retryMs = Math.min(retryMs * 2, LONGEST_RETRY_MS);
  }

  const watch = window.setInterval(() => {
    if (!socket || Date.now() - heardAt <= SILENCE_MS) return;
    const silent = socket;
    closed(silent, 0);
    silent.close();
  }, 1000);
  connect();
  return {
    /** Nothing while there is no connection. */
    send(message) {
      if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
    },
    close() {
      const open = socket;
      socket = null;
      window.clearInterval(watch);
      window.clearTimeout(retry);
      open?.close();
    },
  };
}
