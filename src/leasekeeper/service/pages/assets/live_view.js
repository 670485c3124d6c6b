// The live view: draws pictures of a browser on a canvas, and sends the person's input to the server.
// The newest picture wins: pictures that arrive while one is being drawn are skipped.
const byId = (id) => document.getElementById(id);
const view = byId("lv");
if (view) start(view);

function start(view) {
  const canvas = byId("lv-canvas"), keys = byId("lv-keys"), list = byId("lv-list");
  const pen = canvas.getContext("2d");
  const size = { width: 0, height: 0 };
  let socket = null, acts = false, newest = null, drawing = false, retry = 500, over = false;

  const state = (text) => { byId("lv-state").textContent = text; };
  const send = (message) => { if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };

  function connect() {
    const url = new URL(view.dataset.socket, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => { retry = 500; state("Live"); };
    socket.onmessage = (event) => typeof event.data === "string" ? news(JSON.parse(event.data)) : picture(event.data);
    socket.onclose = (event) => {
      allow(false);
      if (event.code === 4410 || event.code === 4401) { over = true; state(`Over: ${event.reason || "the browser was closed"}`); return; }
      state("Not connected, trying again…");
      setTimeout(connect, retry);
      retry = Math.min(retry * 2, 10000);
    };
  }

  function picture(data) {
    const head = new DataView(data);
    newest = { width: head.getUint16(0), height: head.getUint16(2), jpeg: new Blob([data.slice(4)], { type: "image/jpeg" }) };
    if (!drawing) draw();
  }

  async function draw() {
    drawing = true;
    while (newest) {
      const frame = newest;
      newest = null;
      try {
        const image = await createImageBitmap(frame.jpeg);
        if (canvas.width !== image.width || canvas.height !== image.height) { canvas.width = image.width; canvas.height = image.height; }
        pen.drawImage(image, 0, 0);
        image.close();
        size.width = frame.width;
        size.height = frame.height;
        view.dataset.frames = Number(view.dataset.frames || 0) + 1;
      } catch { /* a damaged picture: the next one comes */ }
    }
    drawing = false;
  }

  function news(message) {
    if ("tabs" in message) tabs(message.tabs);
    if ("control" in message) control(message.control);
    if ("dialog" in message) dialog(message.dialog);
    if ("list" in message) drawList(message.list);
    if ("files" in message) askFiles(message.files);
  }

  function control(message) {
    allow(message.acts);
    byId("lv-control").textContent = message.acts ? "You can act in this browser." : `${message.by} has control; you are watching.`;
  }

  function allow(may) {
    acts = may;
    keys.disabled = !may;
    view.classList.toggle("acts", may);
    if (!may) list.hidden = true;
  }

  function tabs(message) {
    const shown = message.tabs.map((tab) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = tab.title || tab.url || "New tab";
      button.title = tab.url;
      button.setAttribute("aria-pressed", String(tab.target === message.shown));
      button.onclick = () => { send({ k: "tab", target: tab.target }); keys.focus(); };
      return button;
    });
    const follow = document.createElement("button");
    follow.type = "button";
    follow.className = "quiet";
    follow.textContent = "Follow";
    follow.title = "Show the page in which something happens";
    follow.onclick = () => send({ k: "tab", target: null });
    byId("lv-tabs").replaceChildren(...shown, follow);
  }

  // Input. Positions are the page's own, in CSS pixels.
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: Math.round((event.clientX - box.left) * size.width / box.width), y: Math.round((event.clientY - box.top) * size.height / box.height) };
  };
  const modifiers = (event) => (event.altKey ? 1 : 0) | (event.ctrlKey ? 2 : 0) | (event.metaKey ? 4 : 0) | (event.shiftKey ? 8 : 0);
  const mouse = (t, event, more) => { if (acts && size.width) send({ k: "mouse", t, ...at(event), m: modifiers(event), bs: event.buttons, ...more }); };
  let moved = null;
  const flushMove = () => { if (moved) { mouse("move", moved); moved = null; } };
  setInterval(flushMove, 40);

  canvas.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    list.hidden = true;
    keys.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    moved = null;
    clicks = event.timeStamp - lastClick < 400 && lastButton === event.button ? clicks + 1 : 1;
    lastClick = event.timeStamp;
    lastButton = event.button;
    mouse("down", event, { b: event.button, n: clicks });
  });
  let clicks = 0, lastClick = -1000, lastButton = -1;
  canvas.addEventListener("pointerup", (event) => { flushMove(); mouse("up", event, { b: event.button, n: clicks }); });
  canvas.addEventListener("pointermove", (event) => { moved = event; });
  canvas.addEventListener("contextmenu", (event) => { if (acts) event.preventDefault(); });
  canvas.addEventListener("wheel", (event) => {
    if (!acts) return;
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    mouse("wheel", event, { dx: event.deltaX * unit, dy: event.deltaY * unit });
  }, { passive: false });

  const pastes = (event) => (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "v";
  function key(t, event) {
    if (!acts || event.isComposing || event.keyCode === 229 || event.key === "Process" || pastes(event)) return;
    event.preventDefault();
    const types = !event.ctrlKey && !event.metaKey && [...event.key].length === 1;
    const text = event.key === "Enter" ? "\r" : types ? event.key : "";
    send({ k: "key", t, key: event.key, code: event.code, vk: event.keyCode, m: modifiers(event), repeat: event.repeat, text });
  }
  keys.addEventListener("keydown", (event) => key("down", event));
  keys.addEventListener("keyup", (event) => key("up", event));
  // Text of an input method or an on-screen keyboard is sent as a whole.
  const written = (text) => { if (acts && text) send({ k: "text", text }); keys.value = ""; };
  keys.addEventListener("compositionend", (event) => written(event.data));
  keys.addEventListener("input", (event) => { if (!event.isComposing && event.inputType !== "insertCompositionText" && event.inputType !== "insertFromPaste") written(event.data); });
  keys.addEventListener("paste", (event) => { event.preventDefault(); written(event.clipboardData.getData("text/plain")); });

  function drawList(message) {
    if (!acts) return;
    const box = canvas.getBoundingClientRect();
    list.style.left = `${message.x * box.width / size.width}px`;
    list.style.top = `${message.y * box.height / size.height}px`;
    list.replaceChildren(...message.options.map((each, index) => {
      const option = document.createElement("button");
      option.type = "button";
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", String(index === message.picked));
      option.textContent = each.text || "\u00a0";
      option.disabled = each.disabled;
      option.onclick = () => { list.hidden = true; send({ k: "pick", index }); keys.focus(); };
      return option;
    }));
    list.hidden = false;
    (list.children[Math.max(0, message.picked)] || list).focus?.();
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") { list.hidden = true; send({ k: "pick", index: null }); keys.focus(); }
    if (step) { event.preventDefault(); const next = step > 0 ? document.activeElement.nextElementSibling : document.activeElement.previousElementSibling; next?.focus(); }
  });

  const asking = byId("lv-dialog"), files = byId("lv-files");
  let answered = true;
  function dialog(message) {
    if (!message || !acts) { answered = true; if (asking.open) asking.close(); return; }
    byId("lv-dialog-text").textContent = message.message;
    byId("lv-dialog-label").hidden = message.type !== "prompt";
    byId("lv-dialog-cancel").hidden = message.type === "alert";
    byId("lv-dialog-input").value = message.default;
    answered = false;
    asking.returnValue = "";
    if (!asking.open) asking.showModal();
  }
  asking.addEventListener("close", () => {
    if (answered) return;
    answered = true;
    send({ k: "dialog", accept: asking.returnValue === "ok", text: byId("lv-dialog-input").value });
    keys.focus();
  });

  function askFiles(message) {
    const input = byId("lv-files-input");
    input.multiple = message.multiple;
    input.value = "";
    files.returnValue = "";
    if (!files.open) files.showModal();
  }
  files.addEventListener("close", async () => {
    if (files.returnValue !== "ok") return;
    const given = await Promise.all([...byId("lv-files-input").files].map(async (file) => ({ name: file.name, type: file.type, data: await base64(file) })));
    if (given.length) send({ k: "files", files: given });
    keys.focus();
  });
  const base64 = (file) => new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(String(reader.result).split(",", 2)[1] || "");
    reader.readAsDataURL(file);
  });

  addEventListener("pagehide", () => { if (!over && socket) socket.close(); });
  connect();
}
