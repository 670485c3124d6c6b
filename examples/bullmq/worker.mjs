// A BullMQ worker whose jobs work in leased browsers. `npm install bullmq playwright`, then `node worker.mjs`.
import { DelayedError, Worker } from "bullmq";
import { chromium } from "playwright";

const server = process.env.LEASEKEEPER_URL ?? "http://127.0.0.1:7070";
const busyMs = Number(process.env.BUSY_MS ?? 60_000);

async function call(path, token, body) {
  const response = await fetch(`${server}/v1/sessions${path}`, {
    method: "POST",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(`${answer.code}: ${answer.detail}`), { status: response.status });
  return answer;
}

async function work(job, jobToken) {
  const { profile_id, url } = job.data;
  let session;
  try {
    session = await call("", process.env.LEASEKEEPER_TOKEN, { profile_id, on_disconnect: "release" });
  } catch (error) {
    if (error.status !== 409) throw error;
    // Another program has the profile: the job comes back later, and no attempt is used up.
    await job.moveToDelayed(Date.now() + busyMs, jobToken);
    throw new DelayedError();
  }
  const use = (what, body) => call(`/${session.session_id}/${what}`, session.session_token, body);
  try {
    const browser = await chromium.connectOverCDP(session.cdp_url);
    const page = browser.contexts()[0].pages()[0];
    await page.goto(url);
    await use("checkpoint", { step: "shop_open" });
    await use("mutating", { name: "submit_order", action: "enter" });
    await page.click("#go");
    await use("mutating", { name: "submit_order", action: "leave" });
    const title = await page.title();
    await use("release", { output: { title } });
    return title;
  } catch (error) {
    // The run is recorded as failed, with a screenshot. After a lost lease there is nothing to release: 410.
    await use("release", { reason: "TASK_ERROR", message: String(error.message).slice(0, 500) }).catch(() => {});
    throw error;
  }
}

const connection = { url: process.env.REDIS_URL ?? "redis://127.0.0.1:6379" };
const worker = new Worker("orders", work, { connection, concurrency: 4 });
worker.on("completed", (job, title) => console.log(`completed ${job.id}: ${title}`));
worker.on("failed", (job, error) => console.error(`failed ${job?.id}: ${error.message}`));
process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
console.log("ready");
