// Binds the parts together: what is selected, what the reader does, and what is drawn.
import { $, ROWS, RUNNING, element, isolated, page } from './state.js';
import { readOverview, readSamples, traceId, unpack } from './columns.js';
import { view } from './tree.js';
import { Selector, addUpNodes, addUpRoutes, addUpTraces } from './selection.js';
import { addUpTree, cellsBelow, functionsWith } from './selection.js';
import { LANGUAGES, clock, duration, offset, routeText, seconds, serviceText } from './text.js';
import { shortName, timeAt } from './text.js';
import { PLUMBING, palette } from './colours.js';
import { Icicle } from './icicle.js';
import { Timeline, lanesOf, routeColours, routeLegend } from './timeline.js';
import { Table, columnsOf, rowsOf } from './tables.js';
import { showTrace } from './trace.js';
import { bindGraph, drawGraph, zoomTo } from './graph.js';
import { readAddress, writeAddress } from './address.js';

// While a range is dragged: what is visible of the table.
const QUICK_ROWS = 20;
// Milliseconds after the last change until it is followed: typing, and the address.
const TYPING_DELAY = 80;
const ADDRESS_DELAY = 100;

const darkScheme = matchMedia('(prefers-color-scheme: dark)');
const trees = new Map();
const timers = {};
let selector, runningSelector, table;

// The script runs before the samples, most of the page, are parsed.
const parsed = new Promise(resume =>
  addEventListener('DOMContentLoaded', () => setTimeout(resume)),
);

async function start() {
  const facts = JSON.parse($('facts').textContent);
  const sections = {};
  const unpackOne = async it => {
    sections[it.dataset.section] = await unpack(it.textContent);
    it.remove();
  };
  const unpackAll = () =>
    Promise.all([...document.querySelectorAll('[data-section]')].map(unpackOne));
  await unpackAll();
  page.model = readOverview(sections, facts);
  showFirst();
  performance.mark('picture');
  await parsed;
  await unpackAll();
  readSamples(page.model, sections);
  showAll();
  performance.mark('ready');
  document.documentElement.dataset.ready = '';
}

// Draws the CPU time of everything, which needs no samples.
function showFirst() {
  const { model } = page;
  const { routes } = model.facts;
  [selector, runningSelector] = [new Selector(model), new Selector(model)];
  page.icicle = new Icicle($('graph').querySelector('canvas'), model);
  table = new Table($('table'), choose);
  page.routes = routeColours(model, totalsBy(model.routeOfCell, routes.length + 1));
  page.by = routes.length ? 'route' : 'service';
  $('by').querySelector('[value=route]').hidden = !routes.length;
  $('by').value = page.by;
  $('plumbing-label').hidden = !model.plumbingOf.some(kind => kind > 0);
  bindGraph();
  bindBar();
  bindTables();
  setColours();
  measure();
  update();
}

// What needs samples: the time line, kinds, times, traces, and the selection in the address.
function showAll() {
  const { model } = page;
  const lanes = lanesOf(model, totalsBy(model.serviceOfCell, model.facts.services.length));
  const canvas = $('lanes').querySelector('canvas');
  page.timeline = new Timeline(canvas, model, lanes, page.routes.colours);
  const { ofKind, first, last } = model.samples;
  const [running, queued, waiting, idle] = ofKind.map(totals => totals.some(it => it > 0));
  $('kinds-label').hidden = !queued && !waiting && !idle;
  $('kinds').querySelector('[value="8"]').hidden = !idle;
  $('kinds').value = running ? RUNNING : idle && !queued && !waiting ? 8 : 7;
  const [from, length] = [clock(model, first), +seconds(model, last).toFixed(3)];
  $('summary').textContent += ` · from ${from} ${offset(model)}, ${length} s`;
  bindTimeline();
  bindPage();
  followAddress();
}

function totalsBy(ofCell, count) {
  const { cellCount, runningOfCell } = page.model;
  const totals = new Float64Array(count);
  for (let cell = 0; cell < cellCount; cell++) totals[ofCell[cell]] += runningOfCell[cell];
  return totals;
}

// Computes the selection, and draws what depends on it. Quick is what follows the pointer.
function update(quick = false) {
  const { model, selection } = page;
  const key = `${page.plumbing} ${page.by}`;
  if (!trees.has(key)) trees.set(key, view(model, page));
  page.tree = trees.get(key);
  page.weights = selector.select(selection);
  page.sums = addUpTree(model, page.tree, page.weights, page.zoom);
  if (page.zoom && !page.sums.totals[page.zoom]) return regroup({}, quick);
  if (page.zoom) page.weights.below = cellsBelow(page.tree, page.weights.allowed, page.zoom);
  // Where other time is shown, too: in which of it threads ran.
  const isMixed = selection.kinds > RUNNING && selection.kinds & RUNNING;
  const running = () => runningSelector.select({ ...selection, kinds: RUNNING });
  page.running = isMixed ? addUpNodes(page.tree, running()) : null;
  page.found = selection.text ? functionsWith(model, selection.text) : null;
  drawGraph();
  showTable(quick ? Math.min(page.rows, QUICK_ROWS) : page.rows);
  showShades();
  if (quick) return;
  showChips();
  if (!model.samples) return;
  drawTimeline();
  showSelectedTrace();
  later('address', ADDRESS_DELAY, writeAddress);
}

function later(name, delay, follow) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(follow, delay);
}

// Changes the selection; a field that is undefined is not selected any more.
function choose(change) {
  Object.assign(page.selection, change);
  for (const key of Object.keys(change)) if (change[key] === undefined) delete page.selection[key];
  if ('text' in change) $('search').value = change.text ?? '';
  if ('from' in change) $('range').value = rangeText();
  Object.assign(page, { zoom: 0, focus: 0, rows: ROWS });
  update();
  $('announcement').textContent = `${duration(page.sums.total)} selected`;
}

function drawTimeline() {
  const { selection, size, weights, colours, timeline } = page;
  const { service, route, trace, thread, text } = selection;
  const parts = [service, route, trace, thread, text];
  const key = JSON.stringify([size.lanes, colours.dark, ...parts]);
  if (key === timeline.key) return;
  timeline.key = key;
  const isPart = parts.some(it => it !== undefined);
  timeline.draw(size.lanes, colours, isPart ? { allowed: weights.allowed, trace, thread } : null);
}

// Shades what is outside of the range: elements that cost no drawing while a range is dragged.
function showShades() {
  const { from, to } = page.selection;
  $('before').hidden = $('after').hidden = from === undefined;
  if (from === undefined) return;
  const { first, last } = page.model.samples;
  const percent = time => Math.max(0, Math.min(100, ((time - first) / (last - first)) * 100));
  $('before').style.width = `${percent(from)}%`;
  $('after').style.width = `${100 - percent(to)}%`;
}

function bindTimeline() {
  const lanes = $('lanes');
  const { first, last } = page.model.samples;
  let [anchor, frame] = [null, 0];
  const timeUnder = event => {
    const area = lanes.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (event.clientX - area.left) / area.width));
    // The last sample is within a range that is dragged to the end.
    return part === 1 ? last + 1 : first + part * (last - first);
  };
  const follow = event => {
    if (anchor === null) return;
    const time = timeUnder(event);
    setRange(Math.min(anchor, time), Math.max(anchor, time));
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      update(true);
    });
  };
  const end = event => {
    if (anchor === null) return;
    cancelAnimationFrame(frame);
    frame = 0;
    const isClick = Math.abs(timeUnder(event) - anchor) < (last - first) / 500;
    anchor = null;
    const { from, to } = page.selection;
    choose(isClick ? { from: undefined, to: undefined } : { from, to });
  };
  lanes.addEventListener('pointerdown', event => {
    anchor = timeUnder(event);
    lanes.setPointerCapture(event.pointerId);
  });
  lanes.addEventListener('pointermove', follow);
  lanes.addEventListener('pointerup', end);
  lanes.addEventListener('pointercancel', end);
}

function setRange(from, to) {
  page.selection.from = Math.round(from);
  page.selection.to = Math.round(to);
}

function rangeText() {
  const { from, to } = page.selection;
  const text = time => String(+seconds(page.model, time).toFixed(5));
  return from === undefined ? '' : `${text(from)}–${text(to)}`;
}

// Reads "12.5–20", "12.5-20 s" or "12.5..20"; another text has no effect.
function readRange(text) {
  if (text.trim() === '') return choose({ from: undefined, to: undefined });
  const parts = text.match(/^\s*\+?([\d.]+)\s*s?\s*(?:-|–|\.\.)\s*\+?([\d.]+)\s*s?\s*$/);
  const [from, to] = (parts ?? []).slice(1).map(it => Math.round(timeAt(page.model, Number(it))));
  return from < to && choose({ from, to });
}

function bindBar() {
  $('search').addEventListener('input', () =>
    later('search', TYPING_DELAY, () => choose({ text: $('search').value || undefined })),
  );
  const changed = (id, change) => $(id).addEventListener('change', event => change(event.target));
  changed('by', ({ value }) => regroup({ by: value }));
  changed('plumbing', ({ checked }) => regroup({ plumbing: checked }));
  changed('range', ({ value }) => page.model.samples && readRange(value));
  changed('kinds', ({ value }) => {
    page.selection.kinds = Number(value);
    setColours();
    choose({});
  });
}

function regroup(change, quick) {
  Object.assign(page, change, { zoom: 0, focus: 0 });
  update(quick);
}

function showChips() {
  const { service, route, trace, thread, from, text } = page.selection;
  const { facts, samples } = page.model;
  const chips = [];
  const add = (isSelected, name, ...keys) => {
    if (!isSelected) return;
    const onclick = () => choose(Object.fromEntries(keys.map(key => [key, undefined])));
    const properties = { className: 'chip', ariaLabel: `Remove ${name()}`, onclick };
    chips.push(element('button', properties, isolated(name()), ' ✕'));
  };
  const given = value => value !== undefined;
  add(given(service), () => `service ${serviceText(facts.services[service])}`, 'service');
  add(given(route), () => `${facts.by || 'route'} ${routeText(facts, route)}`, 'route');
  add(given(trace), () => `trace ${traceId(samples, trace).slice(0, 8)}…`, 'trace');
  add(given(thread), () => `thread ${samples.threads[thread].name}`, 'thread');
  add(given(from), () => `${rangeText()} s`, 'from', 'to');
  add(given(text), () => `function ${shortName(text)}`, 'text');
  $('chips').replaceChildren(...chips);
}

function showTable(limit = page.rows) {
  const { tab, sort, model } = page;
  const shown = rowsOf(tab, { ...page, sort: sort[tab], limit });
  table.show(columnsOf(tab, model), sort[tab], shown, by => {
    sort[tab] = by;
    showTable();
  });
  $('more').hidden = shown.found <= limit;
}

function bindTables() {
  const tabs = [...$('tabs').querySelectorAll('[role=tab]')];
  tabs.forEach((tab, i) => {
    tab.onclick = () => openTable(tab.id.slice('tab-'.length));
    tab.onkeydown = ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next?.click();
      next?.focus();
    };
  });
  $('more').onclick = () => {
    page.rows += 200;
    showTable();
  };
  $('filter').addEventListener('input', () => {
    Object.assign(page, { filter: $('filter').value, rows: ROWS });
    showTable();
  });
}

function openTable(name) {
  Object.assign(page, { tab: name, rows: ROWS });
  for (const tab of $('tabs').querySelectorAll('[role=tab]')) {
    const isSelected = tab.id === `tab-${name}`;
    tab.ariaSelected = String(isSelected);
    tab.tabIndex = isSelected ? 0 : -1;
  }
  $('panel').setAttribute('aria-labelledby', `tab-${name}`);
  showTable();
  if (page.model.samples) later('address', ADDRESS_DELAY, writeAddress);
}

function showSelectedTrace() {
  const { selection, colours, model } = page;
  const section = $('trace');
  const key = selection.trace && JSON.stringify([selection.trace, colours.dark, innerWidth]);
  if (section.key === key) return;
  section.key = key;
  section.hidden = !key;
  if (key) showTrace(section, model, selection.trace, colours);
  else section.replaceChildren();
  // It takes space from the graph.
  if (measure()) drawGraph();
}

function bindPage() {
  addEventListener('keydown', event => {
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
  const redraw = () => {
    setColours();
    measure();
    update();
  };
  const print = printing => () => redraw((page.printing = printing));
  addEventListener('hashchange', followAddress);
  addEventListener('beforeprint', print(true));
  addEventListener('afterprint', print(false));
  darkScheme.addEventListener('change', redraw);
  new ResizeObserver(() => measure() && update()).observe($('graph'));
}

function followAddress() {
  readAddress();
  const { by, plumbing, selection, tab } = page;
  [$('by').value, $('plumbing').checked, $('kinds').value] = [by, plumbing, selection.kinds];
  [$('search').value, $('range').value] = [selection.text ?? '', rangeText()];
  setColours();
  update();
  openTable(tab);
}

// Returns whether a size has changed.
function measure() {
  const [{ clientWidth, clientHeight }, lanes] = [$('graph'), $('lanes').clientWidth];
  const before = JSON.stringify(page.size);
  page.size = { width: clientWidth, height: clientHeight, lanes };
  return JSON.stringify(page.size) !== before;
}

function setColours() {
  const { model, selection, printing, routes } = page;
  const isPale = (selection.kinds & RUNNING) === 0;
  const colours = (page.colours = palette(darkScheme.matches && !printing, isPale));
  const used = new Set(model.languageOf);
  const languages = [...LANGUAGES, 'plumbing'].map((name, i) => [name, colours.languages[i][1]]);
  const isUsed = i => (i === PLUMBING ? !$('plumbing-label').hidden : used.has(i));
  showLegend($('legend'), languages.filter((_, i) => isUsed(i)));
  showLegend($('routes-legend'), routeLegend(model, routes, colours));
}

function showLegend(list, entries) {
  const items = entries.map(([name, colour]) => {
    const mark = element('i');
    mark.style.background = colour;
    return element('li', {}, mark, isolated(name));
  });
  list.replaceChildren(...items);
}

// For tests and measurements.
Object.assign(page, { choose, update, zoomTo, setRange, addUpRoutes, addUpTraces });
globalThis.page = page;

start();
