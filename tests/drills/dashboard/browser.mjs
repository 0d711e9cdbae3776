// An operator at the dashboard of a real fleet, in Chromium. The browser goes through a proxy of this
// script, which counts bytes and can cut the connection. Reads its settings as JSON from the environment
// (DRILL), and prints what it saw as JSON; `browser.rs` judges it.
import fs from 'node:fs';
import net from 'node:net';
import { createRequire } from 'node:module';

const settings = JSON.parse(process.env.DRILL);
const require = createRequire(settings.tools + '/');
const { chromium } = require('playwright-core');
const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const base = `http://marshal.localhost:${settings.port}`;
const api = `http://${settings.address}/api/v1`;
const seen = { steps: {}, axe: [], overflow: [], faults: [] };

let bytes = 0, isCut = false;
const open = new Set();
const [host, port] = settings.address.split(':');
net.createServer(near => {
  if (isCut) return near.destroy();
  const far = net.connect(Number(port), host);
  for (const socket of [near, far]) {
    open.add(socket);
    socket.on('error', () => {}).on('close', () => { open.delete(socket); near.destroy(); far.destroy(); });
  }
  far.on('data', data => { bytes += data.length; });
  near.pipe(far); far.pipe(near);
}).listen(Number(settings.port), '127.0.0.1');

async function call(method, path, body) {
  const headers = { authorization: `Bearer ${settings.token}`, 'content-type': 'application/json' };
  const answer = await fetch(api + path, { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}
const submit = (prompt, more) => call('POST', '/tasks', { prompt, ...more });
async function until(what, check) {
  for (const end = Date.now() + 60_000; Date.now() < end; await new Promise(r => setTimeout(r, 100))) {
    const found = await check();
    if (found) return found;
  }
  throw new Error(`not in time: ${what}`);
}

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
async function page(width, height, scheme) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on('pageerror', error => seen.faults.push(String(error)));
  page.on('console', line => {
    // A cut connection is an error that the drill makes.
    if (line.type() === 'error' && !/ERR_(CONNECTION|EMPTY|INCOMPLETE|SOCKET)|htmx:sse:error/.test(line.text())) seen.faults.push(line.text());
  });
  await page.addInitScript(() => document.addEventListener('securitypolicyviolation',
    event => console.error(`violates ${event.violatedDirective}: ${event.blockedURI}`)));
  return page;
}
async function logIn(page, code) {
  await page.goto(base + '/');
  await page.getByLabel('Code').fill(code);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('heading', { name: 'Fleet' }).waitFor();
}
async function check(page, name) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  for (const rule of found.violations) seen.axe.push(`${name}: ${rule.id}: ${rule.nodes[0].html.slice(0, 200)}`);
  const width = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  if (width[0] > width[1]) seen.overflow.push(`${name}: ${width}`);
}
const shot = (page, name) => page.screenshot({ path: `${settings.shots}/${name}.png` });
// One click of the operator.
async function click(task, target) {
  seen.steps[task] = (seen.steps[task] || 0) + 1;
  await target.click();
}

async function operate() {
  await submit('say A finished task\nwrite made.md hello').then(task =>
    until('the first task', async () => (await call('GET', `/tasks/${task.id}`)).state === 'ended'));
  await submit('run touch made.txt');
  const approval = await until('an approval', async () => (await call('GET', '/approvals')).items[0]);
  const slow = await submit('sleep 10m');
  await until('the slow task', async () => (await call('GET', `/tasks/${slow.id}`)).state === 'running');
  await submit('say <script>document.title="owned"</script>');

  const desk = await page(1280, 800, 'light');
  await logIn(desk, settings.codes[0]);
  await desk.locator('html[data-live="live"]').waitFor();
  // What is stuck, and why: on the first page.
  const stuck = desk.locator('.stuck');
  seen.stuck = await stuck.innerText();
  seen.steps.stuck = 0;
  await check(desk, 'fleet'); await shot(desk, 'fleet');

  // Approve from a phone.
  const phone = await page(360, 740, 'dark');
  await logIn(phone, settings.codes[1]);
  await check(phone, 'fleet on a phone');
  await click('approve', phone.getByRole('link', { name: /Approvals/ }));
  await phone.locator('.approval').waitFor();
  await check(phone, 'approvals on a phone'); await shot(phone, 'approvals-phone');
  const button = phone.getByRole('button', { name: 'Approve once' });
  seen.thumb = await button.boundingBox();
  await click('approve', button);
  seen.said = await phone.getByRole('status').filter({ hasText: 'The approval' }).innerText();
  seen.approved = (await call('GET', `/approvals/${approval.approval}`)).state;

  // The same by keyboard, with a reason.
  await submit('run touch other.txt');
  await until('another approval', async () => (await call('GET', '/approvals')).items[0]);
  // It is shown without a reload.
  await desk.locator('#pending:not([hidden])').waitFor();
  await desk.goto(base + '/ui/approvals');
  await desk.keyboard.press('j'); await desk.keyboard.press('r');
  await desk.keyboard.type('not that one'); await desk.keyboard.press('Tab'); await desk.keyboard.press('Enter');
  await desk.getByText('The approval is now rejected').waitFor();
  seen.reason = (await call('GET', '/approvals?ended=true')).items.map(item => item.answer?.reason).find(Boolean);
  await desk.goto(base + `/ui/approvals/${approval.approval}`);
  await check(desk, 'one approval'); await shot(desk, 'approval');

  // Tonight's cost.
  await click('cost', desk.getByRole('link', { name: 'Cost' }));
  seen.cost = await desk.locator('.total').innerText();
  await check(desk, 'cost'); await shot(desk, 'cost');

  // Land a result.
  await desk.goto(base + '/');
  await click('land', desk.getByRole('link', { name: 'Tasks' }));
  await check(desk, 'tasks'); await shot(desk, 'tasks');
  const finished = desk.locator('.task', { hasText: 'A finished task' });
  await click('land', finished.getByRole('link', { name: 'Diff and land' }));
  await desk.locator('.diff, .event').first().waitFor();
  await check(desk, 'diff'); await shot(desk, 'diff');
  await click('land', desk.getByRole('button', { name: 'Apply to the workspace' }));
  await desk.getByRole('heading', { name: /Session/ }).waitFor();

  // A session, with what its agent said and was allowed.
  await desk.locator('#events .prompt').waitFor();
  await desk.locator('#events', { hasText: 'Turn completed' }).waitFor();
  seen.session = await desk.locator('#events').innerText();
  await check(desk, 'session'); await shot(desk, 'session');

  // Stop a task.
  await desk.goto(base + '/');
  await click('stop', desk.getByRole('link', { name: 'Tasks' }));
  await click('stop', desk.locator('.task', { hasText: 'sleep 10m' }).getByRole('button', { name: 'Stop this task' }));
  seen.stopped = await until('the end', async () => (await call('GET', `/tasks/${slow.id}`)).outcome);

  // The theme is the person's choice, and stays.
  await desk.getByRole('button', { name: 'Theme' }).click();
  await desk.getByRole('button', { name: 'Theme' }).click();
  await desk.reload();
  seen.theme = await desk.evaluate(() => [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]);
  await check(desk, 'dark by choice');
  seen.title = await desk.title();

  // After a cut connection it is right again.
  await desk.goto(base + '/');
  await desk.locator('html[data-live="live"]').waitFor();
  isCut = true;
  for (const socket of open) socket.destroy();
  await desk.locator('html:not([data-live="live"])').waitFor();
  const missed = await submit('sleep 5m');
  const running = await until('a task meanwhile', async () => { const task = await call('GET', `/tasks/${missed.id}`); return task.state === 'running' && task; });
  seen.before = await desk.locator(`.slot a[href$="${encodeURIComponent(running.session)}"], .slot a[href*="${running.session.slice(-12)}"]`).count();
  isCut = false;
  await desk.locator('html[data-live="live"]').waitFor();
  const slot = running.slot.replace('/', '-');
  await desk.locator(`#slot-${slot} .state[data-state="busy"]`).waitFor();
  seen.after = await desk.locator(`#slot-${slot} .state`).innerText();
  await call('POST', `/tasks/${missed.id}/cancel`);
}

// Frame times and bytes while a large fleet works.
async function measure() {
  const desk = await page(1280, 800, 'light');
  await logIn(desk, settings.codes[0]);
  await desk.locator('html[data-live="live"]').waitFor();
  seen.slots = await desk.locator('.slot').count();
  await check(desk, 'large fleet'); await shot(desk, 'large-fleet');
  // Tasks come at a steady rate all the time, each on a slot of its own.
  const load = (async () => {
    for (let number = 0; number < settings.tasks; number++) {
      await submit('sleep 300ms\nsay done');
      await new Promise(resolve => setTimeout(resolve, 50));
    }
  })();
  const before = bytes, seconds = 10;
  const frames = await desk.evaluate(seconds => new Promise(resolve => {
    const times = [], end = performance.now() + seconds * 1000;
    let last = performance.now();
    const frame = now => { times.push(now - last); last = now; now < end ? requestAnimationFrame(frame) : resolve(times); };
    requestAnimationFrame(frame);
  }), seconds);
  frames.sort((a, b) => a - b);
  seen.bytesPerSecond = Math.round((bytes - before) / seconds);
  seen.frames = { count: frames.length, median: frames[frames.length >> 1], p95: frames[Math.floor(frames.length * 0.95)] };
  await load;
  seen.nodes = await desk.evaluate(() => document.querySelectorAll('*').length);
}

try {
  await (settings.tasks ? measure() : operate());
} catch (error) {
  seen.failed = String(error.stack || error);
}
await browser.close();
console.log(JSON.stringify(seen));
process.exit(0);
