// What scripts add to a page: it refreshes itself, keeps times current, filters while you type, follows keys.
// Without this file every page can still be read, and every form works.

const body = document.body;
const root = body.dataset.root ?? "";
const clockSkew = Date.now() - Date.parse(body.dataset.now ?? new Date().toISOString());

// On a phone the navigation scrolls: scroll to the present page.
document.querySelector(".side nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

// So does the list of reviews in the inbox: scroll to the open one.
const items = document.querySelector(".items"), opened = items?.querySelector("[aria-current]");
if (opened) items.scrollTop = opened.getBoundingClientRect().top - items.getBoundingClientRect().top - items.clientHeight / 3;

// Times: "3 min ago", by the server's clock.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];
function span(seconds) {
  for (const [size, unit] of UNITS) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.floor(seconds)} s`;
}
function updateTimes() {
  const now = Date.now() - clockSkew;
  for (const element of document.querySelectorAll("time[datetime]:not([data-exact])")) {
    const seconds = (now - Date.parse(element.dateTime)) / 1000;
    const text = seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
    if (element.textContent !== text) element.textContent = text;
  }
}
setInterval(() => { if (!document.hidden) updateTimes(); }, 1000);

// Refresh: read this address again and morph the page into it. One at a time; never while the tab is hidden.
// Changes during a request are read within a second, a person's action right after the request.
let refreshing = false, wanted = false, asking = false;
async function refresh() {
  if (refreshing || document.hidden || busyTyping()) { wanted = true; return; }
  refreshing = true; wanted = asking = false;
  try {
    await htmx.ajax("GET", location.href, { source: "#main", target: "#main", select: "#main", swap: "outerMorph" });
  } catch { wanted = true; }
  refreshing = false;
  updateTimes();
  markRow();
  if (asking) refresh();
}
// A form that is open, or text that is being written, is left alone until the person is done.
function busyTyping() {
  return Boolean(document.querySelector("details.ask[open]")) || document.activeElement?.closest?.("form:not(.filter)") != null && document.activeElement.matches("textarea, input, select");
}
// An answer that arrives while the form is open also waits.
document.addEventListener("htmx:before:swap", (event) => { if (busyTyping()) { event.preventDefault(); wanted = true; } });
setInterval(() => { if (wanted) refresh(); }, 1000);
document.addEventListener("visibilitychange", () => { if (wanted && !document.hidden) refresh(); });

// Live: a stream says that something changed. A lost stream is opened again, and the page read once more.
const status = document.getElementById("live");
function say(text, on) {
  if (!status) return;
  status.textContent = text;
  status.toggleAttribute("data-on", on);
  status.toggleAttribute("data-lost", !on);
}
// All windows share their streams: see live.js. A hidden window has none.
let port;
// The first stream begins at the page's position, so that nothing is missed in between.
let readUntil = body.dataset.after && Number(body.dataset.after);
function follow(through) {
  port = through;
  port.onmessage = ({ data }) => {
    if (data.refused) location.reload();
    else if (data.changed) refresh();
    else say(data.live ? "live" : "reconnecting", data.live);
  };
  joinOrLeave();
}
function joinOrLeave() {
  if (!port) return;
  port.postMessage(document.hidden ? null : { live: body.dataset.live, all: `${root}/ui/live`, after: readUntil });
  if (!document.hidden) readUntil = undefined;
}
async function followAlone() {
  const { join } = await import(body.dataset.worker), { port1, port2 } = new MessageChannel();
  join(port1);
  follow(port2);
}
if (body.dataset.live) {
  if (globalThis.SharedWorker) {
    // By name, so that another person who signs in does not follow this token's stream.
    const worker = new SharedWorker(body.dataset.worker, { type: "module", name: body.dataset.token });
    worker.onerror = followAlone;
    follow(worker.port);
  } else followAlone();
  document.addEventListener("visibilitychange", joinOrLeave);
  addEventListener("pagehide", () => port?.postMessage(null));
  addEventListener("pageshow", (event) => { if (event.persisted) joinOrLeave(); });
}

// Filter: results follow what is typed; suggestions by the term under the cursor.
const filter = document.querySelector("form[data-filter]");
if (filter) {
  const input = filter.querySelector("[name=q]"), list = filter.querySelector("#suggested");
  let timer, chosen = -1, asked = 0;
  const term = () => input.value.slice(0, input.selectionStart).split(/\s/).pop();
  function apply() {
    const query = new URLSearchParams(new FormData(filter));
    if (!query.get("q")) query.delete("q");
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    asking = true;
    refresh();
  }
  function close() { list.hidden = true; chosen = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); }
  function choose(index) {
    const items = [...list.children];
    chosen = (index + items.length) % items.length;
    items.forEach((item, place) => item.setAttribute("aria-selected", String(place === chosen)));
    input.setAttribute("aria-activedescendant", items[chosen].id);
  }
  function take(text) {
    const at = input.selectionStart, start = at - term().length, rest = input.value.slice(at);
    input.value = input.value.slice(0, start) + text + (text.endsWith(":") ? "" : " ") + rest.trimStart();
    const caret = start + text.length + (text.endsWith(":") ? 0 : 1);
    input.setSelectionRange(caret, caret);
    ++asked; close(); input.focus();
    if (text.endsWith(":")) suggest(); else apply();
  }
  // Remove suggestions that no longer match at once: a key must not choose from an earlier answer.
  function narrow() {
    const begin = term();
    for (const item of [...list.children]) if (!item.dataset.term.startsWith(begin)) item.remove();
    chosen = [...list.children].findIndex((item) => item.getAttribute("aria-selected") === "true");
    if (!list.children.length) close(); else if (chosen < 0) input.removeAttribute("aria-activedescendant");
  }
  async function suggest() {
    const mine = ++asked;
    const query = new URLSearchParams({ of: filter.dataset.filter, term: term() });
    let found = [];
    try { const answer = await fetch(`${root}/ui/suggest?${query}`); if (answer.ok) found = await answer.json(); } catch { return; }
    if (mine !== asked || document.activeElement !== input) return;
    const kept = list.hidden ? undefined : list.children[chosen]?.dataset.term;
    list.replaceChildren(...found.map(({ term, doc }, index) => {
      const item = document.createElement("li"), name = document.createElement("span"), what = document.createElement("small");
      item.id = `s-${index}`; item.setAttribute("role", "option"); item.setAttribute("aria-selected", "false");
      name.textContent = term; what.textContent = doc; what.className = "dim";
      item.append(name, what); item.dataset.term = term;
      return item;
    }));
    list.hidden = !found.length; chosen = -1;
    input.setAttribute("aria-expanded", String(found.length > 0));
    // The selection stays if a later answer has the same suggestion.
    const again = found.findIndex(({ term }) => term === kept);
    if (again >= 0) choose(again); else input.removeAttribute("aria-activedescendant");
  }
  input.addEventListener("input", () => { narrow(); suggest(); clearTimeout(timer); timer = setTimeout(apply, 80); });
  input.addEventListener("focus", () => suggest());
  input.addEventListener("blur", () => setTimeout(close, 150));
  list.addEventListener("mousedown", (event) => { const item = event.target.closest("li"); if (item) { event.preventDefault(); take(item.dataset.term); } });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && !list.hidden) { event.preventDefault(); choose(chosen + 1); }
    else if (event.key === "ArrowUp" && !list.hidden) { event.preventDefault(); choose(chosen - 1); }
    else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) { event.preventDefault(); take(list.children[chosen].dataset.term); }
    else if (event.key === "Escape" && !list.hidden) { event.preventDefault(); close(); }
  });
  filter.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); close(); apply(); });
}

// Keys.
const GOES = { f: "/ui/", q: "/ui/queue", r: "/ui/runs", i: "/ui/reviews", d: "/ui/dead-letters", a: "/ui/activity" };
// The selected row, by id, since rows come and go. If it is gone: the row in its place.
let going = false, here = "", place = 0;
function rows() { return [...document.querySelectorAll("tr[data-row]")]; }
function markRow() { for (const each of rows()) each.classList.toggle("here", each.id === here); }
function move(step) {
  const all = rows();
  if (!all.length) return;
  const focused = document.activeElement.closest("tr[data-row]")?.id ?? here;
  let at = all.findIndex((each) => each.id === focused);
  if (at < 0) at = step > 0 ? place - 1 : place;
  place = Math.max(0, Math.min(all.length - 1, at + step));
  here = all[place].id;
  markRow();
  all[place].querySelector("a")?.focus();
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur?.();
    return;
  }
  const key = event.key;
  if (going) { going = false; if (GOES[key]) { location.href = root + GOES[key]; event.preventDefault(); } return; }
  if (key === "g") { going = true; setTimeout(() => { going = false; }, 1000); return; }
  if (key === "/") { const box = document.getElementById("q"); if (box) { box.focus(); event.preventDefault(); } return; }
  if (key === "?") { document.getElementById("keys")?.showModal(); return; }
  if (key === "Escape") { document.querySelectorAll("details.ask[open]").forEach((each) => { each.open = false; }); return; }
  const named = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (named) { event.preventDefault(); named.click(); return; }
  if (key === "j") move(1);
  if (key === "k") move(-1);
});
// One decision at a time: close any other open one, and focus the note.
document.addEventListener("toggle", (event) => {
  if (!event.target.matches?.("details.ask") || !event.target.open) return;
  document.querySelectorAll("details.ask[open]").forEach((each) => { if (each !== event.target) each.open = false; });
  event.target.querySelector("textarea, input:not([type=hidden])")?.focus();
}, true);
