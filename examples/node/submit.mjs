// Submit a job, wait for its end, and fetch the evidence of its run. Plain fetch, no packages: Node 18 or newer.
//   LEASEKEEPER_URL=https://leases.example.com LEASEKEEPER_TOKEN=lk_... node submit.mjs TASK PROFILE
// The token needs the scopes submit and read.
import { writeFile } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";

const server = process.env.LEASEKEEPER_URL ?? "http://127.0.0.1:7070";
const headers = { authorization: `Bearer ${process.env.LEASEKEEPER_TOKEN}`, "content-type": "application/json" };
const OVER = new Set(["completed", "dead", "skipped", "cancelled", "review"]);

// Every error is a problem with a stable `code`: compare that, and show `detail` to people.
async function call(method, path, { body, key } = {}) {
  const answer = await fetch(server + path, {
    method,
    headers: key ? { ...headers, "idempotency-key": key } : headers,
    body: body && JSON.stringify(body),
  });
  if (answer.ok) return answer;
  const problem = await answer.json();
  throw new Error(`${problem.code}: ${problem.detail}`);
}

const [task, profile] = process.argv.slice(2);
// The same key again gives the first job back: a call whose answer was lost can be repeated.
const key = process.env.KEY ?? crypto.randomUUID();
const { items: [submitted] } = await (
  await call("POST", "/v1/jobs", { body: { task, profile_id: profile }, key })
).json();
console.log(`job ${submitted.job.job_id}${submitted.already_handled ? " (known already)" : ""}`);

let job = submitted.job;
while (!OVER.has(job.state)) {
  await pause(500);
  job = await (await call("GET", `/v1/jobs/${job.job_id}`)).json();
}
console.log(`state ${job.state}${job.stop_reason ? ` (${job.stop_reason})` : ""}`);

if (job.run_id) {
  const run = await (await call("GET", `/v1/runs/${job.run_id}`)).json();
  for (const { name, size } of run.evidence.artifacts ?? []) {
    const file = await call("GET", `/v1/runs/${run.run_id}/evidence/${name}`);
    await writeFile(name, Buffer.from(await file.arrayBuffer()));
    console.log(`saved ${name}, ${size} bytes`);
  }
}
process.exitCode = job.state === "completed" ? 0 : 1;
