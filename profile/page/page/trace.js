// The view of one trace: its threads over time, and its spans if they are known.
import { element, isolated } from './state.js';
import { samplesOf, traceId } from './columns.js';
import { WAITING_TONE } from './timeline.js';
import { columnsOf } from './tables.js';
import { clock, duration, grouped, serviceText } from './text.js';

const MAX_THREADS = 20;
const MAX_SPANS = 200;
const STRIP_HEIGHT = 18;

// What is known of a trace: times, threads with their samples, spans with their CPU time.
export function describeTrace(model, trace) {
  const { samples } = model;
  const indexes = samplesOf(samples, trace);
  const spans = spansOf(model, trace, indexes);
  const unit = model.facts.timeUnit / 1000;
  let [from, to] = [Infinity, -Infinity];
  const ofKind = [0, 0, 0];
  for (const i of indexes) {
    ofKind[samples.kind[i]] += samples.weight[i];
    from = Math.min(from, samples.time[i]);
    to = Math.max(to, samples.time[i] + samples.weight[i] / unit);
  }
  for (const span of spans) {
    from = Math.min(from, span.start / unit);
    to = Math.max(to, (span.start + span.duration) / unit);
  }
  return { trace, from, to, ofKind, threads: threadsOf(samples, indexes), spans };
}

// Samples are sorted by thread, and so are those of a trace.
function threadsOf({ threads, kind, weight }, indexes) {
  const list = [];
  let at = 0;
  for (const i of indexes) {
    while (threads[at].to <= i) at++;
    const isNew = list.at(-1)?.thread !== threads[at];
    if (isNew) list.push({ thread: threads[at], indexes: [], ofKind: [0, 0, 0] });
    list.at(-1).indexes.push(i);
    list.at(-1).ofKind[kind[i]] += weight[i];
  }
  const sum = ({ ofKind }) => ofKind[0] + ofKind[1] + ofKind[2];
  return list.sort((a, b) => sum(b) - sum(a));
}

// Spans of a trace with the time of the samples in them and in the spans below them.
function spansOf({ samples }, trace, indexes) {
  if (!samples.spans) return [];
  const ofTrace = samples.spans.filter(span => span.trace === trace);
  const spans = new Map(ofTrace.map(it => [it.number, { ...it, ofKind: [0, 0, 0], indexes: [] }]));
  for (const i of indexes) {
    const span = spans.get(samples.span[i]);
    if (!span) continue;
    span.indexes.push(i);
    span.ofKind[samples.kind[i]] += samples.weight[i];
  }
  const list = [...spans.values()];
  addToParents(list);
  return list;
}

// Spans come before those below them, so that the last of each depth is the parent of the next.
function addToParents(spans) {
  const path = [];
  for (const span of spans) {
    path[span.depth] = span;
    span.parent = path[span.depth - 1];
  }
  for (const { parent, ofKind } of spans.toReversed()) {
    if (parent) ofKind.forEach((value, kind) => (parent.ofKind[kind] += value));
  }
}

// Fills the section of a trace.
export function showTrace(section, model, trace, colours) {
  const facts = describeTrace(model, trace);
  const { services } = model.facts;
  const spans = facts.spans.map(span => ({
    name: span.name || '(no name)',
    place: serviceText(services[span.service]),
    depth: span.depth,
    length: duration(span.duration),
    indexes: span.indexes,
    ofKind: span.ofKind,
    span,
  }));
  const threads = facts.threads.map(({ thread, indexes, ofKind }) => ({
    name: thread.name || `thread ${thread.tid}`,
    place: `${serviceText(services[thread.service])} ${thread.tid}`,
    indexes,
    ofKind,
  }));
  const show = { model, facts, colours, kinds: columnsOf('traces', model).slice(2) };
  section.replaceChildren(heading(show));
  if (spans.length) section.append(tableOf('Span', spans, MAX_SPANS, show));
  section.append(tableOf('Thread', threads, MAX_THREADS, show));
  for (const canvas of section.querySelectorAll('canvas')) canvas.draw();
}

const colourOf = ({ routes, queued }, kind) => (kind === 1 ? queued : routes[0]);
const toneOf = kind => (kind === 2 ? WAITING_TONE : 1);

const counted = (count, what) => `${grouped(count)} ${what}${count === 1 ? '' : 's'}`;

function heading({ model, facts, kinds }) {
  const { trace, from, to, ofKind, threads, spans } = facts;
  const parts = [
    `first seen at ${clock(model, from)}`,
    `over ${duration(((to - from) * model.facts.timeUnit) / 1000)}`,
    `on ${counted(threads.length, 'thread')}`,
    ...kinds.map(([name, kind]) => `${name} ${duration(ofKind[kind])}`),
  ];
  if (spans.length) parts.push(counted(spans.length, 'span'));
  const id = element('strong', { textContent: `Trace ${traceId(model.samples, trace)}` });
  return element('p', {}, id, ` ${parts.join(' · ')}`);
}

// A table of spans or threads, the last column of which shows them over time.
function tableOf(what, rows, limit, show) {
  const before = [what, ...(show.facts.spans.length ? ['Duration'] : [])];
  const columns = [...before, ...show.kinds.map(([name]) => name), 'Over time'];
  const caption = element('caption', { textContent: `${what}s`, className: 'hidden-text' });
  const made = element('table', {}, caption);
  const head = made.createTHead().insertRow();
  head.append(...columns.map(name => element('th', { textContent: name, scope: 'col' })));
  show.kinds.forEach(([, kind], i) => {
    const colour = `color-mix(in srgb, ${colourOf(show.colours, kind)} ${toneOf(kind) * 100}%`;
    head.cells[before.length + i].style.borderBottom = `3px solid ${colour}, transparent)`;
  });
  const body = made.createTBody();
  for (const row of rows.slice(0, limit)) addRow(body.insertRow(), row, show);
  if (rows.length > limit) {
    const textContent = `and ${grouped(rows.length - limit)} more`;
    body.insertRow().append(element('td', { textContent, colSpan: columns.length }));
  }
  return made;
}

function addRow(row, { name, place, depth = 0, indexes, ofKind, span, length = '' }, show) {
  const parts = [isolated(name), ' ', element('small', {}, isolated(place))];
  const cell = element('th', { scope: 'row', title: `${name} ${place}` }, ...parts);
  cell.style.paddingLeft = `${8 + Math.min(depth, 12) * 12}px`;
  row.append(cell);
  // The column is there for threads, too, so that what happened at once is aligned.
  if (show.facts.spans.length) row.insertCell().textContent = length;
  for (const [, kind] of show.kinds) row.insertCell().textContent = duration(ofKind[kind]);
  row.insertCell().append(strip(show, indexes, span));
}

// A canvas with samples as bars over the trace's time, below the extent of a span.
function strip({ model, facts, colours }, indexes, span) {
  const { from, to } = facts;
  const canvas = element('canvas', { height: STRIP_HEIGHT, ariaHidden: 'true' });
  canvas.draw = () => {
    const width = canvas.parentElement.clientWidth - 16;
    const ratio = globalThis.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.round(STRIP_HEIGHT * ratio);
    const context = canvas.getContext('2d');
    const scale = canvas.width / Math.max(to - from, 1);
    const unit = model.facts.timeUnit / 1000;
    const bar = (start, length, top, height) => {
      const x = (start - from) * scale;
      context.fillRect(x, top * ratio, Math.max(length * scale, ratio), height * ratio);
    };
    if (span) {
      context.fillStyle = colours.line;
      bar(span.start / unit, span.duration / unit, 2, 4);
    }
    const { time, weight, kind } = model.samples;
    for (const i of indexes) {
      context.fillStyle = colourOf(colours, kind[i]);
      context.globalAlpha = toneOf(kind[i]);
      bar(time[i], weight[i] / unit, span ? 7 : 3, span ? 9 : 12);
    }
  };
  return canvas;
}
