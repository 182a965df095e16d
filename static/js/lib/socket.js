// The live socket: snapshot, then deltas in order; a gap asks for a new snapshot; silence counts as lost.
// Reconnects with back-off. Holds no page knowledge.

const SILENCE_MS = 6000;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10000;
const SIGNED_OUT = 4401;
const FORBIDDEN = 4403;

/**
 * `onCells({ set, gone, full })` brings changes, `onState({ state, at, since, now })` the state of the feed:
 * "live", "stale" (the server lost the database), "lost" (no connection), "refused" (signed out).
 */
export function openFeed(path, { onCells, onState }) {
  const feed = { seq: null, at: null, state: "connecting", retryMs: FIRST_RETRY_MS, heardAt: Date.now(), socket: null };
  let timer = null;

  function report(state, { since = null, now = null } = {}) {
    feed.state = state;
    onState({ state, at: feed.at, since, now });
  }

  function connect() {
    const address = new URL(path, window.location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    feed.socket = socket;
    feed.heardAt = Date.now();
    socket.addEventListener("message", (event) => hear(socket, JSON.parse(event.data)));
    socket.addEventListener("close", (event) => closed(socket, event.code));
  }

  function hear(socket, frame) {
    if (socket !== feed.socket) return;
    feed.heardAt = Date.now();
    feed.at = frame.at;
    if (frame.type === "snapshot") {
      feed.seq = frame.seq;
      feed.retryMs = FIRST_RETRY_MS;
      onCells({ set: frame.cells, gone: [], full: true });
    } else if (frame.type === "delta" && frame.from === feed.seq) {
      feed.seq = frame.seq;
      onCells({ set: frame.set, gone: frame.gone, full: false });
    } else if (frame.seq !== feed.seq) {
      feed.seq = null;
      socket.send(JSON.stringify({ type: "resync" }));
    }
    report(frame.state, frame);
  }

  function closed(socket, code) {
    if (socket !== feed.socket) return;
    feed.socket = null;
    if (code === SIGNED_OUT || code === FORBIDDEN) {
      report("refused");
      return;
    }
    report("lost");
    timer = window.setTimeout(connect, feed.retryMs * (0.7 + Math.random() * 0.6));
    feed.retryMs = Math.min(feed.retryMs * 2, LONGEST_RETRY_MS);
  }

  window.setInterval(() => {
    if (feed.socket && Date.now() - feed.heardAt > SILENCE_MS) {
      const silent = feed.socket;
      closed(silent, 0);
      silent.close();
    }
  }, 1000);

  // A laptop that wakes up should not wait for the back-off.
  window.addEventListener("online", () => {
    if (!feed.socket && feed.state === "lost") {
      window.clearTimeout(timer);
      connect();
    }
  });

  report("connecting");
  connect();
}
