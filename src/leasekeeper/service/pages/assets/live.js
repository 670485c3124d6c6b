// The live stream of all windows of the dashboard. A browser opens six connections to a server: with a stream for each
// window, the seventh would never load. So this runs once, as a shared worker, with at most MAX_STREAMS streams; a
// browser without shared workers imports it into each page. A hidden window leaves.
const MAX_STREAMS = 2, RETRY_MS = 2000;
const windows = new Map(); // port → its own stream (`live`), the stream of everything (`all`), and what it has read (`after`)
const streams = new Map(); // address → stream

// A visible window sends what it subscribes to, a hidden one sends null.
export function join(port) {
  port.onmessage = ({ data }) => {
    if (!data) windows.delete(port);
    else windows.set(port, data);
    arrange();
    if (data) welcome(port, data);
  };
  port.onclose = () => { windows.delete(port); arrange(); };
}
if ("onconnect" in globalThis) globalThis.onconnect = (event) => join(event.ports[0]);

// With more windows than streams, all follow the stream of everything.
function arrange() {
  const crowded = new Set([...windows.values()].map((each) => each.live)).size > MAX_STREAMS;
  for (const each of windows.values()) {
    const address = crowded ? each.all : each.live;
    if (each.address && each.address !== address) each.after = undefined;
    each.address = address;
  }
  const wanted = new Set([...windows.values()].map((each) => each.address));
  for (const [address, stream] of streams) if (!wanted.has(address)) { stream.end(); streams.delete(address); }
  for (const address of wanted) if (!streams.has(address)) streams.set(address, open(address));
}
// Changes that were announced after this window's page was read, and before it subscribed.
function welcome(port, each) {
  const stream = streams.get(each.address);
  if (!stream.live) return;
  port.postMessage({ live: true });
  if (!(each.after >= stream.seq)) port.postMessage({ changed: true });
}
function open(address) {
  const stream = { live: false, seq: Infinity }; // `seq`: of the last event that was announced
  const readers = () => [...windows].filter(([, each]) => each.address === address);
  let source, timer;
  function connect() {
    // From the position of the page that was read first; if that is not known, each page is read once more.
    const known = readers().map(([, each]) => each.after ?? Infinity), after = Math.min(...known);
    const from = known.includes(Infinity) ? Infinity : after;
    source = new EventSource(from < Infinity ? `${address}${address.includes("?") ? "&" : "?"}after=${from}` : address);
    source.onopen = () => {
      Object.assign(stream, { live: true, seq: from });
      for (const [port, each] of readers()) {
        port.postMessage({ live: true });
        if (!(each.after >= from)) port.postMessage({ changed: true });
      }
    };
    source.addEventListener("change", ({ data }) => {
      stream.seq = Number(data);
      for (const [port] of readers()) port.postMessage({ changed: true });
    });
    source.addEventListener("refused", () => { for (const [port] of readers()) port.postMessage({ refused: true }); });
    source.onerror = () => {
      source.close();
      stream.live = false;
      for (const [port, each] of readers()) { each.after = undefined; port.postMessage({ live: false }); }
      timer = setTimeout(connect, RETRY_MS);
    };
  }
  stream.end = () => { clearTimeout(timer); source?.close(); };
  // By then the window that opened it is among its readers.
  timer = setTimeout(connect);
  return stream;
}
