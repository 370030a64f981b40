// Opens a page in headless Chromium, does what a reader does, and compares what the page shows with
// the recording's samples: drive.mjs MODULES PAGE FACTS SCENARIO.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import { compareRandomSelections, select, sum } from './count.mjs';

const [, , modules, file, factsFile, scenario] = process.argv;
const require = createRequire(`${modules}/`);
const { chromium } = require('playwright-core');
const axeSource = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const facts = JSON.parse(fs.readFileSync(factsFile, 'utf8'));
const url = `file://${file}`;
// What the page says, and asks for.
const messages = [];
const requests = [];
let browser;

const scenarios = {
  async route() {
    const page = await open();
    await page.getByRole('tab', { name: 'Routes' }).click();
    const expected = await rows(page);
    const of = route => sum(select(facts, { kinds: 1, route: facts.routes.indexOf(route) + 1 }));
    for (const route of facts.routes) {
      const row = expected.find(([name]) => name === route);
      assert.equal(row[2], duration(of(route)));
    }
    await page.getByRole('button', { name: '/cart' }).click();
    assert.equal(await total(page), of('/cart'));
    assert.deepEqual(await chips(page), ['service shop ✕', 'http.route /cart ✕']);
    assert.equal(await page.locator('tr[aria-current=true] th button').textContent(), '/cart');
    // The others stay, to be chosen instead.
    assert.deepEqual(await rows(page), expected);
    assert.equal(
      await page.locator('#announcement').textContent(),
      `${duration(of('/cart'))} selected`,
    );
    await page.getByRole('button', { name: 'Remove http.route /cart' }).click();
    assert.equal(await total(page), sum(select(facts, { kinds: 1, service: 0 })));
    assert.deepEqual(await chips(page), ['service shop ✕']);
  },

  async trace() {
    const page = await open();
    await page.getByRole('tab', { name: 'Traces' }).click();
    // One with a span below its first: a cart that pays.
    const { trace, parent } = facts.spans.find(span => span.parent);
    const ofTrace = facts.samples.filter(sample => sample.trace === trace);
    await page.locator('#filter').fill(trace.slice(0, 12));
    await page.getByRole('button', { name: trace }).click();
    const ofKind = kind => ofTrace.filter(sample => sample.kind === kind);
    assert.equal(await total(page), sum(ofKind(0)));
    const heading = await page.locator('#trace p').textContent();
    assert.ok(heading.startsWith(`Trace ${trace} first seen at `), heading);
    const times = [0, 1, 2].map(kind => duration(sum(ofKind(kind))));
    const threads = new Set(ofTrace.map(({ thread }) => thread));
    assert.ok(heading.includes(`on ${threads.size} threads`), heading);
    assert.ok(
      heading.endsWith(`CPU ${times[0]} · Queued ${times[1]} · Waiting ${times[2]} · 2 spans`),
      heading,
    );
    const [spanRows, threadRows] = await traceTables(page);
    const spans = facts.spans.filter(span => span.trace === trace);
    const inside = id =>
      ofTrace.filter(({ span }) => span === id || (id === parent && span !== id));
    assert.deepEqual(
      spanRows,
      spans.map(({ id, name, duration: length }) => [
        name,
        duration(length),
        ...times3(inside(id)),
      ]),
    );
    const byThread = [...threads].map(thread => {
      const samples = ofTrace.filter(sample => sample.thread === thread);
      return [facts.threads[thread].name, '', ...times3(samples)];
    });
    assert.deepEqual(threadRows.sort(), byThread.sort());
    const strips = await page.$$eval('#trace canvas', list => list.map(it => it.width > 100));
    assert.deepEqual(strips, Array(spans.length + threads.size).fill(true));
    await page.locator('.chip').click();
    assert.equal(await page.locator('#trace').isHidden(), true);
    assert.equal(await total(page), sum(select(facts, { kinds: 1 })));
  },

  async range() {
    const page = await open();
    const input = page.getByLabel('Time', { exact: true });
    // Exact, in units of 10 µs.
    for (const [text, from, to] of [
      ['2–4', 2e5, 4e5],
      ['+0.5s..1.25 s', 5e4, 1.25e5],
      ['0-100', 0, 1e7],
    ]) {
      await input.fill(text);
      await input.press('Enter');
      assert.equal(await total(page), sum(select(facts, { kinds: 1, from, to })), text);
    }
    for (const text of ['4–2', 'x', '1', '-', '1–x', '.–.']) {
      await input.fill(text);
      await input.press('Enter');
      assert.equal(await total(page), sum(select(facts, { kinds: 1 })), text);
    }
    const box = await page.locator('#lanes').boundingBox();
    const y = box.y + 20;
    await page.mouse.move(box.x + box.width * 0.25, y);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.4, y, { steps: 7 });
    await page.mouse.move(box.x + box.width * 0.3, y, { steps: 5 });
    await page.mouse.move(box.x + box.width * 0.5, y, { steps: 9 });
    await page.mouse.up();
    const { from, to } = await page.evaluate(() => globalThis.page.selection);
    const last = Math.max(...facts.samples.map(({ time }) => time));
    assert.ok(Math.abs(from - last * 0.25) < last / 200, `${from} of ${last}`);
    assert.ok(Math.abs(to - last * 0.5) < last / 200, `${to} of ${last}`);
    assert.equal(await total(page), sum(select(facts, { kinds: 1, from, to })));
    assert.equal((await chips(page)).length, 1);
    const shades = await page.$$eval('.shade', list => list.map(it => it.offsetWidth));
    assert.ok(
      Math.abs(shades[0] - box.width / 4) < 2 && Math.abs(shades[1] - box.width / 2) < 2,
      `${shades}`,
    );
    // A click without a move selects all times again.
    await page.mouse.click(box.x + 300, y);
    assert.equal(await total(page), sum(select(facts, { kinds: 1 })));
    assert.equal(await input.inputValue(), '');
    // To the end: with the last sample.
    await page.mouse.move(box.x + box.width / 2, y);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width + 500, y, { steps: 3 });
    await page.mouse.up();
    const start = await page.evaluate(() => globalThis.page.selection.from);
    assert.equal(await total(page), sum(select(facts, { kinds: 1, from: start })));
  },

  async search() {
    const page = await open();
    const search = page.getByLabel('Search');
    for (const text of ['json', 'JSON', 'cart.py', 'ext4_', '/', 'no such function', '<']) {
      await search.fill(text);
      await page.waitForFunction(text => globalThis.page.selection.text === text, text);
      assert.equal(await total(page), sum(select(facts, { kinds: 1, text })), text);
    }
    await search.press('Escape');
    assert.equal(await search.inputValue(), '');
    assert.equal(await total(page), sum(select(facts, { kinds: 1 })));
    assert.equal(await page.evaluate(() => document.activeElement.id), 'graph');
  },

  async keyboard() {
    const page = await open();
    const press = async (...keys) => {
      for (const key of keys) await page.keyboard.press(key);
    };
    const focused = () =>
      page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
    const node = async () => (await page.locator('#node').textContent()).split(', ')[0];
    await press('/');
    assert.equal(await focused(), 'search');
    await page.keyboard.type('render');
    await page.waitForFunction(() => globalThis.page.selection.text === 'render');
    await press('Escape');
    assert.equal(await focused(), 'graph');
    assert.equal(await node(), 'All');
    await press('ArrowDown', 'ArrowDown');
    assert.equal(await node(), '/report');
    await press('ArrowRight');
    assert.equal(await node(), '/cart');
    await press('ArrowRight', 'ArrowRight', 'ArrowRight');
    assert.equal(await node(), '(no http.route)');
    await press('ArrowLeft', 'ArrowLeft', 'ArrowLeft', 'ArrowDown', 'ArrowDown', 'ArrowDown');
    assert.equal(await node(), 'Handler.do_GET');
    await press('Enter');
    const expanded = await page.locator('#node').getAttribute('aria-expanded');
    assert.equal(expanded, 'true');
    assert.equal(await page.locator('#node').getAttribute('aria-level'), '6');
    const widths = await page.evaluate(() => {
      const { boxes, zoom, size } = globalThis.page;
      return [boxes.width[boxes.node.indexOf(zoom)], size.width];
    });
    assert.equal(widths[0], widths[1]);
    // Back to the caller of what was zoomed, and up from there.
    await press('Escape');
    assert.equal(await node(), 'serve');
    await press('ArrowUp');
    assert.equal(await node(), 'worker');
    await press('Home');
    assert.equal(await node(), 'All');
    // The end of the stacks is not passed.
    await press(...Array(30).fill('ArrowDown'));
    assert.equal(await page.locator('#node').getAttribute('aria-expanded'), 'false');
    // Tables: by Tab, arrows between tabs, Enter on a row.
    while ((await focused()) !== 'tab-functions') await press('Tab');
    await press('ArrowRight');
    assert.equal(await focused(), 'tab-routes');
    await press('ArrowRight', 'ArrowRight', 'ArrowLeft', 'ArrowLeft');
    assert.equal(await focused(), 'tab-routes');
    while ((await focused()) !== '/pay') await press('Tab');
    await press('Enter');
    assert.deepEqual(await chips(page), ['service payments ✕', 'http.route /pay ✕']);
    while (!(await focused()).startsWith('http.route /pay')) await press('Shift+Tab');
    await press('Enter');
    assert.deepEqual(await chips(page), ['service payments ✕']);
  },

  async zoom() {
    const page = await open();
    const box = await page.locator('#graph canvas').boundingBox();
    // The second row: services; the third of its boxes is the narrowest.
    const at = (part, row) => [box.x + box.width * part, box.y + row * 19 + 9];
    await page.mouse.move(...at(0.1, 1));
    const tip = page.locator('#tip');
    const shop = sum(select(facts, { kinds: 1, service: 0 }));
    const all = sum(select(facts, { kinds: 1 }));
    assert.equal(
      await tip.textContent(),
      `shop${duration(shop)}, ${((shop / all) * 100).toFixed(1)} %`,
    );
    await page.mouse.click(...at(0.1, 1));
    await page.mouse.move(...at(0.95, 1));
    assert.ok((await tip.textContent()).startsWith('shop'));
    // The tables follow: the service's functions, its routes, and its part of traces.
    const ofZoom = () =>
      page.evaluate(() => {
        const { sums, tree, zoom } = globalThis.page;
        const above = [];
        for (let i = zoom; i > 0; i = tree.parent[i]) above.push(sums.labelTotal[tree.label[i]]);
        return [sums.totals[zoom], sums.labelSelf.reduce((one, other) => one + other), ...above];
      });
    assert.deepEqual(await ofZoom(), [shop, shop, shop]);
    await page.getByRole('tab', { name: 'Routes' }).click();
    const routes = await rows(page);
    assert.ok(routes.length > 1 && routes.every(([, service]) => service === 'shop'), routes);
    for (const [name, , time] of routes) {
      const route = facts.routes.indexOf(name) + 1;
      assert.equal(time, duration(sum(select(facts, { kinds: 1, service: 0, route }))));
    }
    await page.getByRole('tab', { name: 'Traces' }).click();
    const traces = await rows(page);
    assert.ok(traces.length > 1);
    for (const [trace, , , cpu] of traces)
      assert.equal(cpu, duration(sum(select(facts, { kinds: 1, service: 0, trace }))));
    await page.getByRole('tab', { name: 'Functions' }).click();
    // Callers of what is zoomed have all of its time.
    await page.evaluate(() => {
      const { boxes, tree, model } = globalThis.page;
      const isShown = node => node >= 0 && model.names[tree.label[node]] === 'cart.show';
      globalThis.page.zoomTo(boxes.node.find(isShown));
    });
    const [frame, own, ...above] = await ofZoom();
    assert.ok(above.length > 3 && frame < shop, `${above}`);
    assert.deepEqual([own, ...above], Array(above.length + 1).fill(frame));
    // What a range has nothing of is zoomed no more.
    await page.evaluate(() => {
      globalThis.page.setRange(0, 1);
      globalThis.page.update(true);
    });
    const state = await page.evaluate(() => [globalThis.page.zoom, globalThis.page.sums.total]);
    const inRange = sum(select(facts, { kinds: 1, from: 0, to: 1 }));
    assert.deepEqual(state, [0, inRange]);
    await page.evaluate(() => globalThis.page.choose({ from: undefined, to: undefined }));
    await page.mouse.click(...at(0.1, 1));
    await page.mouse.move(...at(0.1, 3));
    assert.match(
      await tip.textContent(),
      /^workershop\/server\.py:\d+ · .*called through up to 5 frames of plumbing$/,
    );
    // The row of everything leads back.
    await page.mouse.click(...at(0.5, 0));
    await page.mouse.move(...at(0.95, 1));
    assert.ok((await tip.textContent()).startsWith('web'));
    await page.mouse.move(...at(0.95, 40));
    assert.equal(await tip.isVisible(), false);
  },

  async plumbing() {
    const page = await open();
    const names = () =>
      page.evaluate(() => {
        const { boxes, tree, model } = globalThis.page;
        const labels = boxes.node.filter(node => node >= 0).map(node => tree.label[node]);
        return labels
          .filter(label => label < model.first.plumbing)
          .map(label => model.names[label]);
      });
    const isPlumbing = name =>
      facts.stacks.some(stack => stack.some(frame => frame[0] === name && frame[2] > 0));
    assert.deepEqual((await names()).filter(isPlumbing), []);
    const before = await total(page);
    await page.getByLabel('plumbing').check();
    const shown = new Set((await names()).filter(isPlumbing));
    assert.ok(
      shown.has('Py_BytesMain') && shown.has('uv_run') && shown.has('tokio::runtime::poll'),
    );
    assert.equal(await total(page), before);
    await page.getByLabel('Group by').selectOption('none');
    assert.equal(
      await page.evaluate(
        () => globalThis.page.tree.label[1] < globalThis.page.model.first.plumbing,
      ),
      true,
    );
    assert.equal(await total(page), before);
  },

  async kinds() {
    const page = await open();
    const show = page.getByLabel('Show');
    for (const kinds of [2, 4, 7, 8, 1]) {
      await show.selectOption(String(kinds));
      assert.equal(await total(page), sum(select(facts, { kinds })));
    }
    // Beside time of running threads, all other is lighter, at the right end of each box.
    const running = () => page.evaluate(() => globalThis.page.running?.[0] ?? null);
    assert.equal(await running(), null);
    await show.selectOption('7');
    assert.equal(await running(), sum(select(facts, { kinds: 1 })));
    const part = sum(select(facts, { kinds: 1 })) / sum(select(facts, { kinds: 7 }));
    const width = await page.evaluate(() => globalThis.page.size.width);
    const at = x => graphPixel(page, Math.round(x), 10);
    assert.deepEqual(await at(width * part - 4), [227, 230, 235]);
    assert.deepEqual(await at(width * part + 4), [244, 245, 247]);
    // Idle threads are in no other kind, and not in the time line.
    const idle = sum(select(facts, { kinds: 8 }));
    assert.ok(idle > 0);
    assert.equal(sum(select(facts, { kinds: 15 })), idle + sum(select(facts, { kinds: 7 })));
    const { binned, shown } = await page.evaluate(() => {
      const all = values => values.reduce((sum, value) => sum + value, 0);
      const { timeline, model } = globalThis.page;
      const [running, queued, waiting] = model.samples.ofKind.map(all);
      return { binned: all(timeline.bins), shown: running + queued + waiting };
    });
    assert.ok(Math.abs(binned - shown) < 1, `${binned}, not ${shown}`);
    await show.selectOption('1');
    // Time in which threads did not run is lighter.
    const colour = () => page.evaluate(() => globalThis.page.colours.languages[0][1]);
    assert.equal(await colour(), 'hsl(221 95% 80%)');
    await show.selectOption('4');
    assert.equal(await colour(), 'hsl(221 95% 93%)');
    await page.getByRole('tab', { name: 'Traces' }).click();
    assert.deepEqual(await page.locator('thead th').allTextContents(), [
      'Trace',
      'At',
      'CPU',
      'Queued',
      'Waiting',
    ]);
  },

  async tables() {
    const page = await open();
    const functions = new Map();
    for (const { stack, weight } of select(facts, { kinds: 1 })) {
      const frames = facts.stacks[stack];
      const own = frames.at(-1);
      const label = own[2] ? `[${facts.plumbing[own[2] - 1]}]` : own[0];
      const seen = new Set(frames.filter(frame => !frame[2]).map(frame => frame[0]));
      for (const name of seen.add(label)) {
        const known = functions.get(name) ?? { total: 0, own: 0 };
        known.total += weight;
        if (name === label) known.own += weight;
        functions.set(name, known);
      }
    }
    const expected = by =>
      [...functions.values()]
        .map(it => it[by])
        .filter(value => value > 0)
        .sort((a, b) => b - a)
        .slice(0, 50)
        .map(duration);
    assert.deepEqual(
      (await rows(page)).map(row => row[3]),
      expected('own'),
    );
    await page.locator('thead').getByRole('button', { name: 'Total' }).click();
    assert.deepEqual(
      (await rows(page)).map(row => row[2]),
      expected('total'),
    );
    assert.equal(await page.locator('th[aria-sort=descending]').textContent(), 'Total');
    await page.locator('#filter').fill('CART');
    const shown = (await rows(page)).map(row => row[0] + row[1]);
    assert.ok(
      shown.length > 1 && shown.every(text => text.toLowerCase().includes('cart')),
      `${shown}`,
    );
    await page.locator('#filter').fill('');
    await page.getByRole('tab', { name: 'Traces' }).click();
    await page.locator('thead').getByRole('button', { name: 'At' }).click();
    const times = (await rows(page)).map(row => parseFloat(row[2]));
    assert.deepEqual(
      times,
      [...times].sort((a, b) => a - b),
    );
    assert.equal(times.length, 50);
    await page.getByRole('button', { name: 'More rows' }).click();
    assert.equal(
      (await rows(page)).length,
      new Set(facts.samples.map(it => it.trace).filter(Boolean)).size,
    );
    assert.equal(await page.getByRole('button', { name: 'More rows' }).isVisible(), false);
  },

  async link() {
    const trace = facts.spans[0].trace;
    const links = {
      '#service=shop&route=%2Freport': { service: 0, route: 1 },
      '#route=': { route: 0 },
      [`#trace=${trace}`]: { trace },
      '#thread=4711%2F4712': { thread: 1 },
      '#time=100000..300000&kinds=7': { from: 1e5, to: 3e5, kinds: 7 },
      '#function=json.dumps&plumbing=1&by=none&table=traces': { text: 'json.dumps' },
      // Nothing of this is in the recording, or well-formed.
      '#route=%2Fnone&trace=00&service=x&thread=1&time=9..1&kinds=3&by=x&table=x': {},
      '#time=a..b&%%%=%00&kinds=': {},
    };
    for (const [link, selection] of Object.entries(links)) {
      const page = await open({ link });
      assert.equal(await total(page), sum(select(facts, { kinds: 1, ...selection })), link);
      // What the recording does not have is said.
      const missing = link.includes('none&trace') ? ['service', 'route', 'trace', 'thread'] : [];
      const said = missing.map(key => `This recording lacks the link's ${key}.`).join(' ');
      assert.equal(await page.locator('#stale').textContent(), said, link);
      await page.context().close();
    }
    const page = await open();
    await page.getByRole('tab', { name: 'Routes' }).click();
    await page.getByRole('button', { name: '/cart' }).click();
    await page.waitForFunction(() => location.hash === '#service=shop&route=%2Fcart&table=routes');
    // A link that is followed in the page.
    await page.evaluate(() => (location.hash = '#function=Cart.total'));
    await page.waitForFunction(() => globalThis.page.selection.text === 'Cart.total');
    assert.equal(await total(page), sum(select(facts, { kinds: 1, text: 'Cart.total' })));
    assert.equal(await page.getByLabel('Search').inputValue(), 'Cart.total');
    await page.getByRole('button', { name: 'Remove function Cart.total' }).click();
    await page.waitForFunction(() => location.hash === '');
  },

  async dark() {
    const page = await open({ colorScheme: 'dark' });
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const corner = () => graphPixel(page, 700, 300);
    assert.equal(await background(), 'rgb(21, 23, 27)');
    assert.deepEqual(await corner(), [21, 23, 27]);
    await page.emulateMedia({ colorScheme: 'light' });
    await page.waitForFunction(() => !globalThis.page.colours.dark);
    assert.equal(await background(), 'rgb(255, 255, 255)');
    assert.deepEqual(await corner(), [255, 255, 255]);
  },

  async narrow() {
    const page = await open({ viewport: { width: 390, height: 844 } });
    const sizes = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.deepEqual(sizes, [390, 390]);
    assert.equal(await page.evaluate(() => globalThis.page.size.width), 390);
    await page.getByRole('tab', { name: 'Traces' }).click();
    await page.locator('#table tbody button').first().click();
    assert.deepEqual(
      await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]),
      [390, 390],
    );
    // Every control can be reached without scrolling sideways.
    const right = await page.$$eval('input, select, button', list =>
      Math.max(...list.map(it => it.getBoundingClientRect().right)),
    );
    assert.ok(right <= 390, `${right}`);
  },

  async print() {
    const page = await open({ colorScheme: 'dark', viewport: { width: 900, height: 300 } });
    const rows = await page.evaluate(() => globalThis.page.boxes.rows);
    await page.emulateMedia({ media: 'print' });
    await page.evaluate(() => dispatchEvent(new Event('beforeprint')));
    const shown = await page.evaluate(() => {
      const { height } = document.querySelector('#graph canvas').getBoundingClientRect();
      const isHidden = id => getComputedStyle(document.getElementById(id)).display === 'none';
      return {
        height,
        dark: globalThis.page.colours.dark,
        hidden: [isHidden('plumbing-label'), isHidden('tabs')],
      };
    });
    assert.deepEqual(shown, { height: rows * 19, dark: false, hidden: [true, true] });
    assert.equal(
      await page.evaluate(() => getComputedStyle(document.body).backgroundColor),
      'rgb(255, 255, 255)',
    );
    const pdf = await page.pdf();
    assert.equal(pdf.subarray(0, 5).toString(), '%PDF-');
    await page.emulateMedia({ media: 'screen' });
    await page.evaluate(() => dispatchEvent(new Event('afterprint')));
    assert.equal(await page.evaluate(() => globalThis.page.colours.dark), true);
  },

  async axe() {
    for (const options of [
      {},
      { colorScheme: 'dark' },
      { viewport: { width: 390, height: 844 } },
    ]) {
      const page = await open(options);
      await check(page, JSON.stringify(options));
      await page.getByRole('tab', { name: 'Traces' }).click();
      await page.locator('#table tbody button').first().click();
      await page.getByLabel('Search').fill('a');
      await page.waitForFunction(() => globalThis.page.selection.text === 'a');
      await check(page, `${JSON.stringify(options)} with a trace`);
      await page.context().close();
    }
  },

  async scriptless() {
    const page = await open({ javaScriptEnabled: false });
    const rows = await page.locator('tbody tr').allTextContents();
    assert.equal(rows[1], 'bn_mul_mont3,350 ms3,350 ms');
    assert.equal(await page.locator('h1').textContent(), 'shop.otlp');
    assert.equal(await page.locator('noscript').isVisible(), true);
  },

  async random() {
    const page = await open();
    assert.deepEqual(await compareRandomSelections(page, facts, 10_000), []);
  },

  async hostile() {
    const page = await open();
    const harmed = () => page.evaluate(() => globalThis.harmed);
    for (const tab of ['Functions', 'Routes', 'Traces']) {
      await page.getByRole('tab', { name: tab }).click();
      const buttons = page.locator('#table tbody button:not(:disabled)');
      const count = await buttons.count();
      // Functions that are no plumbing, and a route and a trace for each name.
      assert.equal(count, { Functions: 6, Routes: 8, Traces: 8 }[tab]);
      for (let i = 0; i < count; i++) {
        await buttons.nth(i).click();
        const remove = page.getByRole('button', { name: /^Remove/ });
        while ((await remove.count()) > 0) await remove.first().click();
      }
    }
    const box = await page.locator('#graph canvas').boundingBox();
    for (let row = 0; row < 9; row++) {
      await page.mouse.move(box.x + 20, box.y + row * 19 + 9);
      await page.mouse.click(box.x + 20, box.y + row * 19 + 9);
    }
    await check(page, 'hostile names');
    assert.equal(await harmed(), undefined);
    // The page has the elements that it has without hostile names, and no others.
    assert.equal(await page.locator('img, svg, iframe, object, embed, form').count(), 0);
    assert.equal(await page.locator('script').count(), 2);
    const title = await page.title();
    assert.ok(title.startsWith('<img src=x onerror="globalThis.harmed=1">\ufffd'), title);
    // A script that markup would bring does not run: the policy is in force.
    const inline = await page.evaluate(() => {
      const script = document.createElement('script');
      script.textContent = 'globalThis.harmed = 7';
      document.body.append(script);
      return globalThis.harmed;
    });
    assert.equal(inline, undefined);
    // Nor is anything asked for.
    const asked = await page.evaluate(() =>
      fetch('http://127.0.0.1:9/').catch(error => error.message),
    );
    assert.equal(asked, 'Failed to fetch');
    const [inlineRefused, ...fetchRefused] = messages.splice(0);
    assert.match(inlineRefused, /inline script.*Content Security Policy/);
    assert.ok(fetchRefused.length > 0);
    for (const message of fetchRefused) {
      assert.ok(message.includes('http://127.0.0.1:9/'), message);
      assert.match(message, /Content Security Policy/);
    }
  },

  async empty() {
    const page = await open();
    assert.equal(await total(page), 0);
    for (const tab of ['Routes', 'Traces', 'Functions'])
      await page.getByRole('tab', { name: tab }).click();
    await page.locator('#graph').press('Enter');
    await page.getByLabel('Search').fill('x');
    await page.waitForFunction(() => globalThis.page.selection.text === 'x');
    await check(page, 'an empty recording');
  },
};

// Opens the page, and notes what it says and what it asks for.
async function open({ link = '', ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.on('console', message => messages.push(message.text()));
  page.on('pageerror', error => messages.push(`${error.message}\n${error.stack}`));
  page.on('request', request => {
    const asked = request.url().split('#')[0];
    if (asked !== url && asked !== 'data:,') requests.push(asked);
  });
  await page.goto(url + link);
  if (options.javaScriptEnabled !== false) {
    await page.waitForSelector('html[data-ready]', { state: 'attached', timeout: 300_000 });
  }
  return page;
}

async function check(page, what) {
  await page.evaluate(axeSource);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map(
    ({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map(it => it.html).slice(0, 3)}`,
  );
  assert.deepEqual(found, [], what);
}

const total = page => page.evaluate(() => globalThis.page.sums.total);
const chips = page => page.locator('.chip').allTextContents();

// Texts of the table's rows: name, second line, and the other columns.
const rows = page =>
  page.$$eval('#table tbody tr', list =>
    list.map(({ cells: [name, ...rest] }) => [
      name.querySelector('bdi').textContent,
      name.querySelector('small').textContent,
      ...rest.map(cell => cell.textContent),
    ]),
  );

// The rows of each table of the trace, without places and strips.
const traceTables = page =>
  page.$$eval('#trace table', tables =>
    tables.map(({ tBodies: [body] }) =>
      [...body.rows].map(({ cells: [name, ...rest] }) => [
        name.firstChild.textContent,
        ...rest.map(cell => cell.textContent).slice(0, -1),
      ]),
    ),
  );

// A pixel of the graph, by way of a canvas that is made for reading.
const graphPixel = (page, x, y) =>
  page.evaluate(
    ([x, y]) => {
      const copy = document.createElement('canvas');
      const context = copy.getContext('2d', { willReadFrequently: true });
      context.drawImage(document.querySelector('#graph canvas'), -x, -y);
      return [...context.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
    },
    [x, y],
  );

const times3 = samples =>
  [0, 1, 2].map(kind => duration(sum(samples.filter(it => it.kind === kind))));

// As the page writes times.
function duration(microseconds) {
  const milliseconds = microseconds / 1000;
  const grouped = value => Math.round(value).toLocaleString('en');
  if (milliseconds >= 10_000) return `${grouped(milliseconds / 1000)} s`;
  if (milliseconds >= 100) return `${grouped(milliseconds)} ms`;
  if (milliseconds === 0) return '0 ms';
  return `${milliseconds.toFixed(milliseconds < 1 ? 2 : 1)} ms`;
}

browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
await scenarios[scenario]();
await browser.close();
assert.deepEqual(messages, []);
assert.deepEqual(requests, []);
console.log(`${scenario}: done`);
