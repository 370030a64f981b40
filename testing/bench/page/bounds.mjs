// Measures the page of a recording of 1,000,000 samples in headless Chromium against its bounds:
//
//     cargo run --release -p otelctx-page --example synthetic -- target/synthetic.html
//     node testing/bench/page/bounds.mjs target/synthetic.html [REPETITIONS]
//
// Times are CPU time of the page's main thread: of loading by Chromium's trace, of what a reader does
// by the kernel's account of the thread, until two frames later, with style, layout and drawing.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../..');
const require = createRequire(path.join(root, 'target/setup/page/'));
const { chromium } = require('playwright-core');

const file = path.resolve(process.argv[2]);
const repetitions = Number(process.argv[3] ?? 60);
const LOADS = 5;
const rows = [];

const browser = await chromium.launch({
  executablePath: '/usr/bin/chromium',
  args: ['--no-sandbox'],
});
bound('size of the file, in MiB', fs.statSync(file).size / 2 ** 20, 4.5);
await measureLoading();
await measureUse();
await browser.close();
const isOver = rows.some(({ value, limit }) => value > limit);
for (const { name, value, limit } of rows) {
  const verdict = value > limit ? 'over the bound' : 'holds';
  console.log(`${name.padEnd(52)} ${value.toFixed(2).padStart(8)}  ≤ ${limit}  ${verdict}`);
}
process.exit(isOver ? 1 : 0);

function bound(name, value, limit) {
  rows.push({ name, value, limit });
}

async function open() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  return context.newPage();
}

async function goTo(page) {
  await page.goto(`file://${file}`);
  await page.waitForSelector('html[data-ready]', { state: 'attached', timeout: 120_000 });
}

// CPU time from the page's first event to its two marks: the median of several loads.
async function measureLoading() {
  const loads = [];
  for (let i = 0; i < LOADS; i++) {
    const page = await open();
    await browser.startTracing(page, {
      categories: ['blink.user_timing', 'devtools.timeline', 'loading'],
    });
    await goTo(page);
    const { traceEvents } = JSON.parse(await browser.stopTracing());
    const mark = name => traceEvents.find(it => it.name === name && it.cat.includes('user_timing'));
    const [picture, ready] = [mark('picture'), mark('ready')];
    const isMain = it => it.pid === picture.pid && it.tid === picture.tid && it.tts > 0;
    const times = traceEvents
      .filter(it => isMain(it) && it.name === 'CommitLoad')
      .map(it => it.tts);
    const start = Math.max(...times.filter(time => time < picture.tts));
    loads.push([(picture.tts - start) / 1e6, (ready.tts - start) / 1e6]);
    await page.context().close();
  }
  const median = column => loads.map(load => load[column]).sort((a, b) => a - b)[LOADS >> 1];
  bound('CPU time to the first picture, in s', median(0), 0.15);
  bound('CPU time until all is ready, in s', median(1), 0.4);
}

// The page's process: of the browser's renderers, of which one may be a spare, that with most memory.
async function mainThread() {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  const resident = ({ id }) => Number(fs.readFileSync(`/proc/${id}/statm`, 'utf8').split(' ')[1]);
  const renderers = processInfo.filter(({ type }) => type === 'renderer');
  return renderers.sort((a, b) => resident(b) - resident(a))[0].id;
}

// Percentiles of what a reader does, each in a fresh state.
async function measureUse() {
  const page = await open();
  await goTo(page);
  const thread = await mainThread();
  const used = () =>
    Number(fs.readFileSync(`/proc/${thread}/schedstat`, 'utf8').split(' ')[0]) / 1e6;
  const settle = () =>
    page.evaluate(
      () => new Promise(resume => requestAnimationFrame(() => requestAnimationFrame(resume))),
    );
  const measure = async (what, argument) => {
    const before = used();
    await page.evaluate(what, argument);
    await settle();
    return used() - before;
  };
  // The search's first use prepares names; it counts like the others.
  const actions = {
    selection: [
      i =>
        globalThis.page.choose({
          route: 1 + (i % 40),
          trace: undefined,
          from: undefined,
          to: undefined,
        }),
      i => globalThis.page.choose({ route: undefined, service: i % 4 }),
      i => globalThis.page.choose({ service: undefined, trace: 1 + ((i * 37) % 1900) }),
      i =>
        globalThis.page.choose({
          trace: undefined,
          from: i * 100_000,
          to: i * 100_000 + 5_000_000,
        }),
      i => globalThis.page.choose({ route: 1 + (i % 40) }),
      () => globalThis.page.choose({ route: undefined, from: undefined, to: undefined }),
    ],
    search: [
      i =>
        globalThis.page.choose({ text: ['cart', 'token', 'Query', 'sort', 'kernel', 'e'][i % 6] }),
    ],
    zoom: [
      i =>
        globalThis.page.zoomTo(
          globalThis.page.boxes.node.filter(it => it > 0)[(i * 17) % 2000] ?? 0,
        ),
    ],
  };
  for (const [name, list] of Object.entries(actions)) {
    const times = [];
    for (let i = 0; i < repetitions; i++) {
      for (const action of list) times.push(await measure(action, i));
      if (name === 'zoom') await page.evaluate(() => globalThis.page.zoomTo(0));
    }
    report(name, times, 40);
    await page.evaluate(() => globalThis.page.choose({ text: undefined }));
    await settle();
  }
  report('move while dragging', await drag(page, measure), 16);
  await page.context().close();
}

// Moves of 12 px each over the time line.
async function drag(page, measure) {
  const times = [];
  for (let i = 0; i < repetitions * 2; i++) {
    const move = step => {
      const { last } = globalThis.page.model.samples;
      globalThis.page.setRange(last * 0.1, last * (0.1 + (step % 70) * 0.0125 + 0.0125));
      globalThis.page.update({ quick: true });
    };
    times.push(await measure(move, i));
  }
  return times;
}

function report(name, times, limit) {
  times.sort((a, b) => a - b);
  console.log(`${name}: median ${times[times.length >> 1].toFixed(1)} ms of ${times.length}`);
  bound(`CPU time of a ${name}, p95, in ms`, times[Math.floor(times.length * 0.95)], limit);
}
