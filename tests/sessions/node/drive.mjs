// Drives the browser of a session with a published client: accepts a dialog, then clicks until it is cut or has clicked often enough, says
// which, and after a cut comes back once and says what it was answered.
const [, , kind, site, name, times] = process.argv;
const url = process.env.LEASEKEEPER_CDP_URL;

async function connect() {
  if (kind === "playwright") {
    const { chromium } = await import("playwright");
    const browser = await chromium.connectOverCDP(url);
    return { page: browser.contexts()[0].pages()[0], leave: () => browser.close() };
  }
  const { default: puppeteer } = await import("puppeteer-core");
  const browser = await puppeteer.connect({ browserWSEndpoint: url, defaultViewport: null });
  return { page: (await browser.pages())[0], leave: () => browser.disconnect() };
}

const { page, leave } = await connect();
page.on("dialog", (dialog) => dialog.accept());
if (!(await page.evaluate("confirm('sure?')"))) throw new Error("somebody else answered the dialog");
await page.goto(`${site}/?title=${name}`);
console.log("ready");
let clicks = 0;
try {
  while (clicks < Number(times)) {
    await page.click("#go");
    clicks += 1;
  }
  await leave();
  console.log(`clicked ${clicks}`);
  process.exit(0);
} catch (error) {
  console.log("cut:", error.message.split("\n")[0]);
}
try {
  await connect();
  console.log("again: connected");
} catch (error) {
  console.log("again:", JSON.stringify(error.message));
}
process.exit(0);
