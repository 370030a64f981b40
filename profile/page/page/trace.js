// The view of one trace: its threads over time, and its spans if they are known.
import { traceId } from './columns.js';
import { clock, duration, grouped, serviceText } from './text.js';

const MAX_THREADS = 20;
const MAX_SPANS = 200;
const STRIP_HEIGHT = 18;

// What is known of a trace: times, threads with their samples, spans with their CPU time.
export function describeTrace(model, trace) {
  const { samples } = model;
  const indexes = samples.byTrace.subarray(samples.traceFrom[trace], samples.traceFrom[trace + 1]);
  const spans = spansOf(model, trace, indexes);
  const unit = model.facts.timeUnit / 1000;
  let [from, to] = [Infinity, -Infinity];
  for (const i of indexes) {
    from = Math.min(from, samples.time[i]);
    to = Math.max(to, samples.time[i] + samples.weight[i] / unit);
  }
  for (const span of spans) {
    from = Math.min(from, span.start / unit);
    to = Math.max(to, (span.start + span.duration) / unit);
  }
  const ofKind = [0, 0, 0];
  for (const i of indexes) ofKind[samples.kind[i]] += samples.weight[i];
  return { trace, from, to, ofKind, threads: threadsOf(samples, indexes), spans };
}

// Samples are sorted by thread, and so are those of a trace.
function threadsOf({ threads, kind, weight }, indexes) {
  const list = [];
  let at = 0;
  for (const i of indexes) {
    while (threads[at].to <= i) at++;
    if (list.at(-1)?.thread !== threads[at]) list.push({ thread: threads[at], indexes: [], ofKind: [0, 0, 0] });
    list.at(-1).indexes.push(i);
    list.at(-1).ofKind[kind[i]] += weight[i];
  }
  const sum = ({ ofKind }) => ofKind[0] + ofKind[1] + ofKind[2];
  return list.sort((a, b) => sum(b) - sum(a));
}

// Spans of a trace with the time of the samples in them and in the spans below them.
function spansOf({ samples }, trace, indexes) {
  if (!samples.spans) return [];
  const first = samples.spans.findIndex((span) => span.trace === trace);
  if (first < 0) return [];
  const rest = samples.spans.slice(first);
  const end = rest.findIndex((span) => span.trace !== trace);
  const spans = rest.slice(0, end < 0 ? rest.length : end);
  const list = spans.map((span) => ({ ...span, ofKind: [0, 0, 0], indexes: [] }));
  for (const i of indexes) {
    const span = list[samples.span[i] - 1 - first];
    if (!span) continue;
    span.indexes.push(i);
    span.ofKind[samples.kind[i]] += samples.weight[i];
  }
  addToParents(list);
  return list;
}

// The parent of a span is the nearest before it that is less deep.
function addToParents(spans) {
  for (let i = spans.length - 1; i > 0; i--) {
    let parent = i - 1;
    while (parent >= 0 && spans[parent].depth >= spans[i].depth) parent--;
    if (parent < 0) continue;
    spans[i].ofKind.forEach((value, kind) => (spans[parent].ofKind[kind] += value));
  }
}

// Fills the section of a trace.
export function showTrace(section, model, trace, colours) {
  const facts = describeTrace(model, trace);
  const kinds = kindsOf(model);
  const children = [heading(model, facts, kinds)];
  if (facts.spans.length) children.push(spanTable(model, facts, kinds, colours));
  children.push(threadTable(model, facts, kinds, colours));
  section.replaceChildren(...children);
  for (const canvas of section.querySelectorAll('canvas')) canvas.draw();
}

const kindsOf = ({ samples }) =>
  [['CPU', 0], ['Queued', 1], ['Waiting', 2]].filter(
    ([, kind]) => kind === 0 || samples.ofKind[kind].some((value) => value > 0),
  );

function element(tag, text, properties = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  return Object.assign(made, properties);
}

function heading(model, { trace, from, to, ofKind, threads, spans }, kinds) {
  const whole = ((to - from) * model.facts.timeUnit) / 1000;
  const parts = [
    `first seen at ${clock(model, from)}`,
    `over ${duration(whole)}`,
    `on ${threads.length} ${threads.length === 1 ? 'thread' : 'threads'}`,
    ...kinds.map(([name, kind]) => `${name} ${duration(ofKind[kind])}`),
  ];
  if (spans.length) parts.push(`${spans.length} ${spans.length === 1 ? 'span' : 'spans'}`);
  const line = element('p');
  line.append(element('strong', `Trace ${traceId(model.samples, trace)}`), ` ${parts.join(' · ')}`);
  return line;
}

function emptyTable(caption, columns) {
  const made = element('table');
  made.append(element('caption', caption, { className: 'hidden-text' }));
  const head = made.createTHead().insertRow();
  for (const name of columns) head.append(element('th', name, { scope: 'col' }));
  made.createTBody();
  return made;
}

function addRow(body, name, small, depth, texts, canvas) {
  const row = body.insertRow();
  const cell = element('th', undefined, { scope: 'row' });
  cell.style.paddingLeft = `${8 + Math.min(depth, 12) * 12}px`;
  cell.append(element('bdi', name), ' ', element('small', small));
  cell.title = `${name} ${small}`;
  row.append(cell);
  for (const text of texts) row.insertCell().textContent = text;
  row.insertCell().append(canvas);
}

function addRest(body, count, what, columns) {
  if (count <= 0) return;
  const cell = element('td', `and ${grouped(count)} more ${what}`, { colSpan: columns });
  body.insertRow().append(cell);
}

function threadTable(model, facts, kinds, colours) {
  const columns = ['Thread', ...kinds.map(([name]) => name), 'Over time'];
  const made = emptyTable('Threads of the trace', columns);
  for (const { thread, indexes, ofKind } of facts.threads.slice(0, MAX_THREADS)) {
    const service = serviceText(model.facts.services[thread.service]);
    const texts = kinds.map(([, kind]) => duration(ofKind[kind]));
    const canvas = strip(model, facts, colours, { indexes });
    addRow(made.tBodies[0], thread.name || `thread ${thread.tid}`, `${service} ${thread.tid}`, 0, texts, canvas);
  }
  addRest(made.tBodies[0], facts.threads.length - MAX_THREADS, 'threads', columns.length);
  return made;
}

function spanTable(model, facts, kinds, colours) {
  const columns = ['Span', 'Duration', ...kinds.map(([name]) => name), 'Over time'];
  const made = emptyTable('Spans of the trace', columns);
  for (const span of facts.spans.slice(0, MAX_SPANS)) {
    const service = serviceText(model.facts.services[span.service]);
    const texts = [duration(span.duration), ...kinds.map(([, kind]) => duration(span.ofKind[kind]))];
    const canvas = strip(model, facts, colours, { indexes: span.indexes, span });
    addRow(made.tBodies[0], span.name || '(no name)', service, span.depth, texts, canvas);
  }
  addRest(made.tBodies[0], facts.spans.length - MAX_SPANS, 'spans', columns.length);
  return made;
}

// A canvas with samples as bars over the trace's time, below the extent of a span.
function strip(model, { from, to }, colours, { indexes, span }) {
  const canvas = element('canvas', undefined, { height: STRIP_HEIGHT });
  canvas.ariaHidden = 'true';
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
      context.fillStyle = colours.routes[0];
      context.globalAlpha = kind[i] === 0 ? 1 : 0.35;
      bar(time[i], weight[i] / unit, span ? 7 : 3, span ? 9 : 12);
    }
    context.globalAlpha = 1;
  };
  return canvas;
}
