// The stream of events: opened while the page is looked at, opened again when it breaks, never silent without notice.

const SILENCE_MILLISECONDS = 25000;
const AGAIN_MILLISECONDS = 3000;

// `tell` hears {state: "connecting" | "live" | "lost"}, `on` the events by kind.
export function follow({ after, on, tell }) {
  let source = null;
  let heard = Date.now();
  let seen = after;
  let timer = null;

  function open() {
    close();
    heard = Date.now();
    source = new EventSource(`/api/events?after=${seen}`);
    source.addEventListener("open", () => { heard = Date.now(); });
    source.addEventListener("error", lost);
    for (const [kind, take] of Object.entries(on)) {
      source.addEventListener(kind, (event) => {
        heard = Date.now();
        if (event.lastEventId) seen = Number(event.lastEventId);
        tell("live");
        take(JSON.parse(event.data));
      });
    }
  }

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function lost() {
    tell("lost");
    // A browser tries again by itself unless the server has refused; then we do.
    if (source?.readyState === EventSource.CLOSED) timer = setTimeout(open, AGAIN_MILLISECONDS);
  }

  setInterval(() => {
    if (source && !document.hidden && Date.now() - heard > SILENCE_MILLISECONDS) {
      tell("lost");
      open();
    }
  }, 1000);
  // Browsers allow few connections to one server; a page nobody looks at gives its own back.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("online", open);
  addEventListener("pagehide", close);
  open();
}
