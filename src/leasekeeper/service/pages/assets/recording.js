// Plays recording.lkr: pictures of a run's browser with their times. See runtime/recording.py for the format.
for (const player of document.querySelectorAll("[data-recording]")) load(player);

async function load(player) {
  const canvas = player.querySelector("canvas"), slider = player.querySelector("input"), button = player.querySelector("button");
  const shown = player.querySelector("output"), pen = canvas.getContext("2d");
  const answer = await fetch(player.dataset.recording);
  if (!answer.ok) { shown.textContent = `not there (${answer.status})`; return; }
  const frames = read(await answer.arrayBuffer());
  if (!frames.length) { shown.textContent = "empty"; return; }
  const end = frames[frames.length - 1].at;
  let at = 0, drawn = -1, playing = null;
  slider.max = end;
  slider.disabled = button.disabled = false;
  player.dataset.frames = frames.length;

  const clock = (ms) => `${Math.floor(ms / 60000)}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}`;
  async function show() {
    let index = frames.findIndex((frame) => frame.at > at) - 1;
    if (index < -1) index = frames.length - 1;
    index = Math.max(0, index);
    slider.value = at;
    shown.textContent = `${clock(at)} of ${clock(end)}`;
    if (index === drawn) return;
    drawn = index;
    try {
      const image = await createImageBitmap(frames[index].jpeg);
      if (drawn !== index) return;
      if (canvas.width !== image.width || canvas.height !== image.height) { canvas.width = image.width; canvas.height = image.height; }
      pen.drawImage(image, 0, 0);
      image.close();
      player.dataset.shown = index;
    } catch { /* a damaged picture is left out */ }
  }
  function play(from) {
    let last = from;
    playing = requestAnimationFrame(function step(now) {
      at = Math.min(end, at + now - last);
      last = now;
      show();
      if (at >= end) stop(); else playing = requestAnimationFrame(step);
    });
    button.textContent = "Pause";
  }
  function stop() { cancelAnimationFrame(playing); playing = null; button.textContent = "Play"; }
  button.onclick = () => { if (playing !== null) { stop(); return; } if (at >= end) at = 0; play(performance.now()); };
  slider.oninput = () => { stop(); at = Number(slider.value); show(); };
  show();
}

function read(data) {
  const view = new DataView(data), frames = [];
  if (data.byteLength < 4 || view.getUint32(0) !== 0x4c4b5231) return frames;
  for (let place = 4; place + 12 <= data.byteLength;) {
    const size = view.getUint32(place + 8);
    if (place + 12 + size > data.byteLength) break;
    frames.push({ at: view.getUint32(place), jpeg: new Blob([data.slice(place + 12, place + 12 + size)], { type: "image/jpeg" }) });
    place += 12 + size;
  }
  return frames;
}
