// Binds the parts together: what is selected, what the reader does, and what is drawn.
import { readOverview, readSamples, traceId, traceWithId, unpack } from './columns.js';
import { view } from './tree.js';
import { Selector, addUpTree, functionsWith } from './selection.js';
import { LANGUAGES, clock, duration, labelText, offset, placeText, routeText, seconds } from './text.js';
import { serviceText, share, shortName, timeAt } from './text.js';
import { OTHER_ROUTES, PLUMBING, palette } from './colours.js';
import { Icicle, JOINED, ROW_HEIGHT, boxAt, boxOf, firstChild, layout, siblings } from './icicle.js';
import { Timeline, lanesOf, routeColours, routeLegend } from './timeline.js';
import { DEFAULT_SORT, Table, columnsOf, rowsOf } from './tables.js';
import { showTrace } from './trace.js';

const $ = (id) => document.getElementById(id);
const ROWS = 50;
// While a range is dragged: what is visible of the table.
const QUICK_ROWS = 20;
const MAX_PRINTED_ROWS = 60;
const RUNNING = 1;

// What the reader sees. `selection` is described in selection.js.
const state = {
  selection: { kinds: RUNNING },
  by: 'route',
  plumbing: false,
  tab: 'functions',
  sort: { ...DEFAULT_SORT },
  filter: '',
  rows: ROWS,
  zoom: 0,
  focus: 0,
};

const darkScheme = matchMedia('(prefers-color-scheme: dark)');
let printing = false;
// The sizes of the graph and of the time line: reading them from the page makes it lay itself out.
const size = { width: 0, height: 0, lanes: 0 };
let addressTimer = 0;
let model, selector, tree, weights, sums, boxes, colours, found, routes, timeline, table, icicle;
const trees = new Map();

// The script runs before the samples, most of the page, are parsed.
const parsed = new Promise((resume) => addEventListener('DOMContentLoaded', () => setTimeout(resume)));

async function start() {
  const facts = JSON.parse($('facts').textContent);
  const sections = {};
  const unpackAll = () =>
    Promise.all(
      [...document.querySelectorAll('[data-section]')].map(async (it) => {
        sections[it.dataset.section] = await unpack(it.textContent);
        it.remove();
      }),
    );
  await unpackAll();
  model = readOverview(sections, facts);
  showFirst();
  performance.mark('picture');
  await parsed;
  await unpackAll();
  readSamples(model, sections);
  showAll();
  performance.mark('ready');
  document.documentElement.dataset.ready = '';
}

// Draws the CPU time of everything, which needs no samples.
function showFirst() {
  selector = new Selector(model);
  icicle = new Icicle($('graph').querySelector('canvas'), model);
  table = new Table($('table'), choose);
  routes = routeColours(model, totalsBy(model.routeOfCell, model.facts.routes.length + 1), OTHER_ROUTES);
  state.by = model.facts.routes.length ? 'route' : 'service';
  $('by').querySelector('[value=route]').hidden = !model.facts.routes.length;
  $('by').value = state.by;
  $('plumbing-label').hidden = !model.plumbingOf.some((kind) => kind > 0);
  bindGraph();
  bindBar();
  bindTables();
  setColours();
  measure();
  update();
}

// What needs samples: the time line, kinds, times, traces, and the selection in the address.
function showAll() {
  const lanes = lanesOf(model, totalsBy(model.serviceOfCell, model.facts.services.length));
  const colourOfCell = Uint8Array.from(model.routeOfCell, (route) => routes.colours[route]);
  timeline = new Timeline($('lanes').querySelector('canvas'), model, lanes, colourOfCell);
  const [running, queued, waiting] = model.samples.ofKind.map((totals) => totals.some((it) => it > 0));
  $('kinds-label').hidden = !queued && !waiting;
  $('kinds').value = String((state.selection.kinds = running ? RUNNING : 7));
  const { first, last } = model.samples;
  const length = seconds(model, last) - seconds(model, first);
  $('summary').textContent += ` · from ${clock(model, first)} ${offset(model)}, ${+length.toFixed(3)} s`;
  bindTimeline();
  bindPage();
  readAddress();
  update();
}

function totalsBy(ofCell, count) {
  const totals = new Float64Array(count);
  for (let cell = 0; cell < model.cellCount; cell++) totals[ofCell[cell]] += model.runningOfCell[cell];
  return totals;
}

// Computes the selection, and draws what depends on it.
export function update(parts = {}) {
  const key = `${state.plumbing} ${state.by}`;
  if (!trees.has(key)) trees.set(key, view(model, state));
  tree = trees.get(key);
  weights = selector.select(state.selection);
  sums = addUpTree(model, tree, weights);
  const { text } = state.selection;
  found = text ? functionsWith(model, text) : null;
  state.zoom = Math.min(state.zoom, tree.count - 1);
  if (sums.totals[state.zoom] === 0) state.zoom = state.focus = 0;
  drawGraph();
  showTable(parts.quick ? Math.min(state.rows, QUICK_ROWS) : state.rows);
  showShades();
  if (parts.quick) return;
  showChips();
  if (!model.samples) return;
  drawTimeline();
  showSelectedTrace();
  clearTimeout(addressTimer);
  addressTimer = setTimeout(writeAddress, 100);
}

// Changes the selection; a field that is undefined is not selected any more.
export function choose(change) {
  for (const [key, value] of Object.entries(change)) {
    if (value === undefined) delete state.selection[key];
    else state.selection[key] = value;
  }
  if ('text' in change) $('search').value = change.text ?? '';
  if ('from' in change) $('range').value = rangeText();
  state.zoom = state.focus = 0;
  state.rows = ROWS;
  update();
  $('announcement').textContent = `${duration(sums.total)} selected`;
}

// --- The icicle graph

function drawGraph(boxesChange = true) {
  const graph = $('graph');
  const { width, height } = size;
  if (boxesChange) boxes = layout(tree, sums.totals, state.zoom, width);
  const rows = printing ? Math.min(boxes.rows, MAX_PRINTED_ROWS) : boxes.rows;
  $('space').style.height = `${rows * ROW_HEIGHT}px`;
  icicle.draw(boxes, tree, {
    colours,
    width,
    height: printing ? rows * ROW_HEIGHT : height,
    scroll: printing ? 0 : graph.scrollTop,
    focus: state.focus,
    found,
    routeColour: routes.colours,
  });
  describeFocus();
}

// Tells screen readers about the frame that arrow keys have moved to.
function describeFocus() {
  const { focus } = state;
  const around = siblings(boxes, tree, focus);
  const node = $('node');
  node.setAttribute('aria-level', tree.depth[focus] + 1);
  node.setAttribute('aria-posinset', around.indexOf(focus) + 1);
  node.setAttribute('aria-setsize', around.length);
  node.setAttribute('aria-expanded', String(firstChild(boxes, tree, focus) >= 0));
  node.textContent = describe(focus).join(', ');
}

// A frame's name, place, time, and what else is known of it.
function describe(node) {
  const label = tree.label[node];
  const total = sums.totals[node];
  const parts = [labelText(model, label), `${duration(total)}, ${share(total, sums.total)}`];
  if (label < model.first.service) {
    const place = placeText(model, label);
    if (place) parts.splice(1, 0, place);
    if (label < model.first.plumbing) parts.push(LANGUAGES[model.languageOf[label]]);
    const frames = tree.through[node];
    if (frames) parts.push(`called through up to ${frames} ${frames === 1 ? 'frame' : 'frames'} of plumbing`);
  }
  return parts;
}

function zoomTo(node) {
  state.zoom = state.focus = node;
  drawGraph();
  scrollToFocus();
}

function moveFocus(node) {
  if (node === undefined || node < 0) return;
  state.focus = node;
  // Scrolling draws, too; what is drawn here is the focus if nothing scrolls.
  scrollToFocus();
  drawGraph(false);
}

function scrollToFocus() {
  const graph = $('graph');
  const y = tree.depth[state.focus] * ROW_HEIGHT;
  if (y < graph.scrollTop || y > graph.scrollTop + graph.clientHeight - 2 * ROW_HEIGHT) {
    graph.scrollTop = y - 2 * ROW_HEIGHT;
  }
}

function bindGraph() {
  const graph = $('graph');
  const boxUnder = (event) => {
    const area = $('space').getBoundingClientRect();
    return boxAt(boxes, event.clientX - area.left, event.clientY - area.top);
  };
  graph.addEventListener('click', (event) => {
    const i = boxUnder(event);
    if (i >= 0 && boxes.node[i] !== JOINED) zoomTo(boxes.node[i]);
  });
  graph.addEventListener('mousemove', (event) => showTip(boxUnder(event), event));
  graph.addEventListener('mouseleave', () => ($('tip').hidden = true));
  graph.addEventListener('scroll', () => drawGraph(false));
  graph.addEventListener('keydown', graphKey);
}

function graphKey(event) {
  const { focus } = state;
  const around = () => siblings(boxes, tree, focus);
  const beside = (step) => around()[around().indexOf(focus) + step];
  const moves = {
    ArrowDown: () => moveFocus(firstChild(boxes, tree, focus)),
    ArrowUp: () => moveFocus(tree.parent[focus]),
    ArrowLeft: () => moveFocus(beside(-1)),
    ArrowRight: () => moveFocus(beside(1)),
    Home: () => moveFocus(0),
    Enter: () => zoomTo(focus),
    Escape: () => zoomTo(tree.parent[state.zoom]),
  };
  const move = moves[event.key];
  if (!move) return;
  event.preventDefault();
  move();
}

function showTip(i, event) {
  const tip = $('tip');
  tip.hidden = i < 0;
  if (i < 0) return;
  const [name, ...rest] = boxes.node[i] === JOINED ? ['frames that are too narrow'] : describe(boxes.node[i]);
  const [line, text] = [document.createElement('b'), document.createElement('bdi')];
  text.textContent = name.length > 600 ? `${name.slice(0, 599)}…` : name;
  line.append(text);
  tip.replaceChildren(line, rest.join(' · '));
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4))}px`;
}

// --- The time line

function drawTimeline() {
  const { service, route, trace, thread, text } = state.selection;
  const isPart = [service, route, trace, thread, text].some((it) => it !== undefined);
  const width = size.lanes;
  const key = JSON.stringify([width, printing, darkScheme.matches, service, route, trace, thread, text]);
  if (key === timeline.key) return;
  timeline.key = key;
  timeline.draw(width, colours, isPart ? { allowed: weights.allowed, trace, thread } : null);
}

// Shades what is outside of the range: elements that cost no drawing while a range is dragged.
function showShades() {
  const { from, to } = state.selection;
  $('before').hidden = $('after').hidden = from === undefined;
  if (from === undefined) return;
  const { first, last } = model.samples;
  const percent = (time) => Math.max(0, Math.min(100, ((time - first) / (last - first)) * 100));
  $('before').style.width = `${percent(from)}%`;
  $('after').style.width = `${100 - percent(to)}%`;
}

function bindTimeline() {
  const lanes = $('lanes');
  let anchor = null;
  let pending = false;
  const timeUnder = (event) => {
    const area = lanes.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (event.clientX - area.left) / area.width));
    const { first, last } = model.samples;
    // The last sample is within a range that is dragged to the end.
    return part === 1 ? last + 1 : first + part * (last - first);
  };
  lanes.addEventListener('pointerdown', (event) => {
    anchor = timeUnder(event);
    lanes.setPointerCapture(event.pointerId);
  });
  lanes.addEventListener('pointermove', (event) => {
    if (anchor === null) return;
    const time = timeUnder(event);
    setRange(Math.min(anchor, time), Math.max(anchor, time));
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      update({ quick: true });
    });
  });
  const end = (event) => {
    if (anchor === null) return;
    const isClick = Math.abs(timeUnder(event) - anchor) < (model.samples.last - model.samples.first) / 500;
    anchor = null;
    const { from, to } = state.selection;
    choose(isClick ? { from: undefined, to: undefined } : { from, to });
  };
  lanes.addEventListener('pointerup', end);
  lanes.addEventListener('pointercancel', end);
}

// Zooming by a range keeps the place in the graph.
function setRange(from, to) {
  state.selection.from = Math.round(from);
  state.selection.to = Math.round(to);
}

function rangeText() {
  const { from, to } = state.selection;
  const text = (time) => String(+seconds(model, time).toFixed(5));
  return from === undefined ? '' : `${text(from)}–${text(to)}`;
}

// Reads "12.5–20" or "12.5-20"; the text stays until it is a range.
function readRange(text) {
  if (text.trim() === '') return choose({ from: undefined, to: undefined });
  const parts = text.match(/^\s*\+?(\d+(?:\.\d*)?)\s*s?\s*(?:[-–]|\.\.)\s*\+?(\d+(?:\.\d*)?)\s*s?\s*$/);
  if (!parts) return undefined;
  const [from, to] = [Number(parts[1]), Number(parts[2])].map((it) => Math.round(timeAt(model, it)));
  return from < to ? choose({ from, to }) : undefined;
}

// --- The bar

function bindBar() {
  let timer = 0;
  $('search').addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(() => choose({ text: $('search').value || undefined }), 80);
  });
  const changed = (id, change) => $(id).addEventListener('change', (event) => change(event.target));
  changed('by', ({ value }) => regroup({ by: value }));
  changed('plumbing', ({ checked }) => regroup({ plumbing: checked }));
  changed('kinds', ({ value }) => {
    choose({ kinds: Number(value) });
    setColours();
    update();
  });
  changed('range', ({ value }) => model.samples && readRange(value));
}

function regroup(change) {
  Object.assign(state, change, { zoom: 0, focus: 0 });
  update();
}

function showChips() {
  const { service, route, trace, thread, from, text } = state.selection;
  const { facts, samples } = model;
  const chips = [];
  const add = (name, change) => {
    const chip = document.createElement('button');
    chip.className = 'chip';
    const bdi = document.createElement('bdi');
    bdi.textContent = name;
    chip.append(bdi, ' ✕');
    chip.ariaLabel = `Remove ${name}`;
    chip.onclick = () => choose(change);
    chips.push(chip);
  };
  const none = undefined;
  if (service !== none) add(`service ${serviceText(facts.services[service])}`, { service: none });
  if (route !== none) add(`${facts.by || 'route'} ${routeText(facts, route)}`, { route: none });
  if (trace) add(`trace ${traceId(samples, trace).slice(0, 8)}…`, { trace: none });
  if (thread !== none) add(`thread ${samples.threads[thread].name}`, { thread: none });
  if (from !== none) add(`${rangeText()} s`, { from: none, to: none });
  if (text) add(`function ${shortName(text)}`, { text: none });
  $('chips').replaceChildren(...chips);
}

// --- The tables

function showTable(rows = state.rows) {
  const { tab, sort, filter, selection } = state;
  const columns = columnsOf(tab, model);
  const shown = rowsOf(tab, { model, weights, sums, selection, sort: sort[tab], limit: rows, filter });
  table.show(columns, sort[tab], shown, (by) => {
    state.sort[tab] = by;
    showTable();
  });
  $('more').hidden = shown.found <= rows;
}

function bindTables() {
  const tabs = [...$('tabs').querySelectorAll('[role=tab]')];
  const open = (tab) => {
    setTab(tab.id.slice('tab-'.length));
    if (model.samples) writeAddress();
  };
  tabs.forEach((tab, i) => {
    tab.onclick = () => open(tab);
    tab.onkeydown = ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      open(next);
      next.focus();
    };
  });
  $('more').onclick = () => {
    state.rows += 200;
    showTable();
  };
  $('filter').addEventListener('input', () => {
    state.filter = $('filter').value;
    state.rows = ROWS;
    showTable();
  });
}

function setTab(name) {
  state.tab = name;
  state.rows = ROWS;
  for (const tab of $('tabs').querySelectorAll('[role=tab]')) {
    const isSelected = tab.id === `tab-${name}`;
    tab.ariaSelected = String(isSelected);
    tab.tabIndex = isSelected ? 0 : -1;
  }
  $('panel').setAttribute('aria-labelledby', `tab-${name}`);
  showTable();
}

// --- The trace

function showSelectedTrace() {
  const { trace } = state.selection;
  const key = trace ? JSON.stringify([trace, darkScheme.matches, printing, innerWidth]) : '';
  const section = $('trace');
  if (section.key === key) return;
  section.key = key;
  section.hidden = !trace;
  if (trace) showTrace(section, model, trace, colours);
  else section.replaceChildren();
  // It takes space from the graph.
  if (measure()) drawGraph();
}

// --- The page

function bindPage() {
  addEventListener('keydown', (event) => {
    const { activeElement } = document;
    const isTyping = ['INPUT', 'SELECT'].includes(activeElement?.tagName);
    if (event.key === '/' && !isTyping) {
      $('search').focus();
      event.preventDefault();
    } else if (event.key === 'Escape' && activeElement === $('search')) {
      choose({ text: undefined });
      $('graph').focus();
    }
  });
  addEventListener('hashchange', () => {
    readAddress();
    update();
  });
  const redraw = () => {
    setColours();
    measure();
    update();
  };
  darkScheme.addEventListener('change', redraw);
  for (const [event, value] of [['beforeprint', true], ['afterprint', false]]) {
    addEventListener(event, () => {
      printing = value;
      document.documentElement.classList.toggle('printing', value);
      redraw();
    });
  }
  new ResizeObserver(() => {
    if (measure()) update();
  }).observe($('graph'));
}

// Returns whether a size has changed.
function measure() {
  const before = JSON.stringify(size);
  size.width = $('graph').clientWidth;
  size.height = $('graph').clientHeight;
  size.lanes = $('lanes').clientWidth;
  return JSON.stringify(size) !== before;
}

function setColours() {
  const isPale = (state.selection.kinds & RUNNING) === 0;
  colours = palette(darkScheme.matches && !printing, isPale);
  const used = new Set(model.languageOf);
  const languages = LANGUAGES.map((name, i) => ({ name, colour: colours.languages[i][1], i }));
  const shown = languages.filter(({ i }) => used.has(i));
  if (!$('plumbing-label').hidden) shown.push({ name: 'plumbing', colour: colours.languages[PLUMBING][1] });
  showLegend($('legend'), shown);
  const entries = routeLegend(model, routes, colours, OTHER_ROUTES);
  showLegend($('routes-legend'), entries.length ? [...entries, { name: 'no route', colour: colours.noRoute }] : []);
}

function showLegend(list, entries) {
  list.replaceChildren(
    ...entries.map(({ name, colour }) => {
      const [item, mark, text] = ['li', 'i', 'bdi'].map((tag) => document.createElement(tag));
      mark.style.background = colour;
      text.textContent = name;
      item.append(mark, text);
      return item;
    }),
  );
}

// --- The address: a link to a page shows the same selection

function writeAddress() {
  const { service, route, trace, thread, from, to, text, kinds } = state.selection;
  const { facts, samples } = model;
  const address = new URLSearchParams();
  const add = (key, value) => value !== undefined && address.set(key, value);
  if (service !== undefined) add('service', facts.services[service]);
  if (route !== undefined) add('route', route === 0 ? '' : facts.routes[route - 1]);
  if (trace) add('trace', traceId(samples, trace));
  if (thread !== undefined) add('thread', `${samples.threads[thread].pid}/${samples.threads[thread].tid}`);
  if (from !== undefined) add('time', `${from}..${to}`);
  add('function', text);
  if (kinds !== RUNNING) add('kinds', kinds);
  if (state.by !== 'route') add('by', state.by);
  if (state.plumbing) add('plumbing', 1);
  if (state.tab !== 'functions') add('table', state.tab);
  const hash = address.size ? `#${address}` : '';
  if (hash !== location.hash) history.replaceState(null, '', hash || location.pathname + location.search);
}

// Takes what it knows of; a selection of something that the recording does not have is ignored.
function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  const { facts, samples } = model;
  const selection = { kinds: Number($('kinds').value) };
  const set = (key, value) => value !== undefined && value >= 0 && (selection[key] = value);
  const given = (key, find) => (address.has(key) ? find(address.get(key)) : undefined);
  set('service', given('service', (name) => facts.services.indexOf(name)));
  set('route', given('route', (name) => (name === '' ? 0 : facts.routes.indexOf(name) + 1 || -1)));
  set('trace', given('trace', (id) => traceWithId(samples, id) || -1));
  const isThread = (id) => ({ pid, tid }) => `${pid}/${tid}` === id;
  set('thread', given('thread', (id) => samples.threads.findIndex(isThread(id))));
  const time = given('time', (text) => text.match(/^(\d+)\.\.(\d+)$/)?.slice(1).map(Number));
  if (time && time[0] < time[1]) [selection.from, selection.to] = time;
  if (address.get('function')) selection.text = address.get('function');
  if (['1', '2', '4', '7'].includes(address.get('kinds'))) selection.kinds = Number(address.get('kinds'));
  state.selection = selection;
  if (['route', 'service', 'none'].includes(address.get('by'))) state.by = address.get('by');
  state.plumbing = address.get('plumbing') === '1';
  [$('by').value, $('plumbing').checked, $('kinds').value] = [state.by, state.plumbing, selection.kinds];
  [$('search').value, $('range').value] = [selection.text ?? '', rangeText()];
  state.zoom = state.focus = 0;
  setColours();
  if (['routes', 'traces'].includes(address.get('table'))) setTab(address.get('table'));
}

// For tests and measurements.
globalThis.page = {
  state,
  choose,
  update,
  zoomTo,
  setRange,
  get model() { return model; },
  get sums() { return sums; },
  get tree() { return tree; },
  get boxes() { return boxes; },
  get weights() { return weights; },
};

start();
