// Reads the sections of the page into typed arrays. README.md describes their encodings.

// Inflates a section: base64 of raw deflate.
export async function unpack(base64) {
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(base64)
    : Uint8Array.from(atob(base64), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Reads numbers and texts one after the other.
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.position = 0;
  }

  number() {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = this.bytes[this.position++];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  }

  numbers(count, array) {
    this.position = fill(this.bytes, this.position, count, array);
    return array;
  }

  texts() {
    const lengths = this.numbers(...sized(this.number()));
    const size = this.number();
    const all = new TextDecoder().decode(this.take(size));
    const texts = new Array(lengths.length);
    for (let i = 0, at = 0; i < texts.length; i++) texts[i] = all.slice(at, (at += lengths[i]));
    return texts;
  }

  take(size) {
    return this.bytes.subarray(this.position, (this.position += size));
  }
}

const sized = count => [count, new Uint32Array(count)];

// Reads 32-bit numbers into an array. A loop of its own, as most of loading is in it.
function fill(bytes, position, count, array) {
  for (let i = 0; i < count; i++) {
    let byte = bytes[position++];
    if (byte > 127) {
      let value = byte & 127;
      let shift = 7;
      do {
        byte = bytes[position++];
        value |= (byte & 127) << shift;
        shift += 7;
      } while (byte > 127);
      byte = value >>> 0;
    }
    array[i] = byte;
  }
  return position;
}

const signed = value => (value >>> 1) ^ -(value & 1);

// Turns differences into values, in place.
function addUp(array) {
  let value = 0;
  for (let i = 0; i < array.length; i++) array[i] = value = (value + signed(array[i])) | 0;
  return array;
}

// Everything that the first picture needs: functions, the tree, and the cells' CPU time.
export function readOverview(sections, facts) {
  const model = { facts, samples: null };
  readFunctions(model, sections);
  numberLabels(model);
  model.full = readTree(model, new Reader(sections.tree));
  readCells(model, new Reader(sections.cells));
  return model;
}

function readFunctions(model, sections) {
  model.names = new Reader(sections.names).texts();
  const count = model.names.length;
  const reader = new Reader(sections.functions);
  model.files = reader.texts();
  model.fileOf = reader.numbers(...sized(count));
  model.lineOf = reader.numbers(...sized(count));
  model.languageOf = reader.take(count);
  model.plumbingOf = reader.numbers(...sized(count));
}

// Whatever a node can be has a number: functions come first, then kinds of plumbing in which stacks
// end, services, "no route" and routes, and the root.
function numberLabels(model) {
  const { plumbing, services, routes } = model.facts;
  const first = { plumbing: model.names.length };
  first.service = first.plumbing + plumbing.length;
  first.route = first.service + services.length;
  first.root = first.route + 1 + routes.length;
  model.first = first;
  model.labelCount = first.root + 1;
}

export function emptyTree(count) {
  return {
    count,
    parent: new Int32Array(count),
    depth: new Uint16Array(count),
    label: new Int32Array(count),
    // The node after the last one below it.
    end: new Uint32Array(count),
    // Whether no node above has the same label: totals of a function count it there alone.
    outermost: new Uint8Array(count),
    deepest: 0,
  };
}

function readTree(model, reader) {
  const tree = emptyTree(reader.number());
  const { parent, depth, label } = tree;
  const path = new Int32Array(4096);
  // The root has neither a level nor a label.
  const values = new Uint32Array(tree.count - 1);
  reader.numbers(tree.count - 1, values);
  for (let i = 1; i < tree.count; i++) {
    const level = depth[i - 1] + 1 - values[i - 1];
    depth[i] = level;
    parent[i] = path[level - 1];
    path[level] = i;
  }
  reader.numbers(tree.count - 1, values);
  const { first } = model;
  label[0] = first.root;
  for (let i = 1, next = 0; i < tree.count; i++) {
    const value = values[i - 1];
    if (depth[i] === 1) label[i] = first.service + value;
    else if (depth[i] === 2) label[i] = first.route + value;
    else label[i] = value === 0 ? next++ : next - value;
  }
  return tree;
}

// Cells are the nodes in which samples end.
function readCells(model, reader) {
  const { full, facts, first } = model;
  const count = (model.cellCount = reader.number());
  model.nodeOfCell = addUp(reader.numbers(count, new Int32Array(count)));
  model.runningOfCell = new Float64Array(count);
  for (let cell = 0; cell < count; cell++) {
    const value = reader.number();
    // Values can have more than 32 bits: no bit operations.
    const half = Math.floor(value / 2);
    model.runningOfCell[cell] = half * 2 === value ? half * facts.period : half;
  }
  const service = new Uint32Array(full.count);
  const route = new Uint32Array(full.count);
  for (let i = 1; i < full.count; i++) {
    const level = full.depth[i];
    service[i] = level === 1 ? full.label[i] - first.service : service[full.parent[i]];
    route[i] = level === 2 ? full.label[i] - first.route : route[full.parent[i]];
  }
  model.serviceOfCell = new Uint32Array(count);
  model.routeOfCell = new Uint32Array(count);
  for (let cell = 0; cell < count; cell++) {
    model.serviceOfCell[cell] = service[model.nodeOfCell[cell]];
    model.routeOfCell[cell] = route[model.nodeOfCell[cell]];
  }
}

// The samples, sorted by thread and by time within each.
export function readSamples(model, sections) {
  const threads = readThreads(new Reader(sections.threads));
  const count = threads.length ? threads[threads.length - 1].to : 0;
  const column = (name, array) => new Reader(sections[name]).numbers(count, array);
  const samples = {
    count,
    threads,
    time: readTimes(column('time', new Int32Array(count)), threads, model.facts.periodInTime),
    kind: sections.kind.length ? sections.kind : new Uint8Array(count),
    weight: column('weight', new Uint32Array(count)),
    trace: addUp(column('trace', new Int32Array(count))),
    cell: column('cell', new Uint32Array(count)),
    span: sections.span ? addUp(column('span', new Int32Array(count))) : null,
    traceCount: sections.traces.length / 16,
    traceBytes: sections.traces,
    spans: sections.spans ? readSpans(new Reader(sections.spans)) : null,
  };
  replaceShortForms(samples, model.facts.period);
  addUpKinds(model, samples);
  sortByTrace(samples);
  setExtent(samples, model.facts);
  model.samples = samples;
}

function readThreads(reader) {
  const threads = [];
  const count = reader.number();
  for (let i = 0, from = 0; i < count; i++) {
    const [pid, tid, service] = [reader.number(), reader.number(), reader.number()];
    const to = from + reader.number();
    threads.push({ pid, tid, service, from, to });
    from = to;
  }
  reader.texts().forEach((name, i) => (threads[i].name = name));
  return threads;
}

function readTimes(time, threads, period) {
  for (const { from, to } of threads) {
    let last = -period;
    for (let i = from; i < to; i++) time[i] = last = (last + period + signed(time[i])) | 0;
  }
  return time;
}

// A weight of 0 is the period, a cell of 0 that of the sample before.
function replaceShortForms({ count, weight, cell }, period) {
  for (let i = 0, last = 0; i < count; i++) {
    if (weight[i] === 0) weight[i] = period;
    if (cell[i] !== 0) last = cell[i] - 1;
    cell[i] = last;
  }
}

// The weight of each cell by kind: selections without a time need no samples.
function addUpKinds(model, samples) {
  const { kind, weight, cell, count } = samples;
  samples.ofKind = [0, 1, 2, 3].map(() => new Float64Array(model.cellCount));
  for (let i = 0; i < count; i++) samples.ofKind[kind[i]][cell[i]] += weight[i];
}

// Sorts the indexes of samples by trace, with a counting sort.
function sortByTrace(samples) {
  const { count, trace, traceCount } = samples;
  const from = new Uint32Array(traceCount + 2);
  for (let i = 0; i < count; i++) from[trace[i] + 1]++;
  for (let i = 0; i <= traceCount; i++) from[i + 1] += from[i];
  const next = from.slice();
  samples.byTrace = new Uint32Array(count);
  for (let i = 0; i < count; i++) samples.byTrace[next[trace[i]]++] = i;
  samples.traceFrom = from;
}

// The indexes of a trace's samples.
export const samplesOf = ({ byTrace, traceFrom }, trace) =>
  byTrace.subarray(traceFrom[trace], traceFrom[trace + 1]);

// The times of the first and the last sample or span.
function setExtent(samples, facts) {
  let [first, last] = [Infinity, 0];
  for (const { from, to } of samples.threads) {
    if (from === to) continue;
    first = Math.min(first, samples.time[from]);
    last = Math.max(last, samples.time[to - 1]);
  }
  for (const { start, duration } of samples.spans ?? []) {
    const unit = facts.timeUnit / 1000;
    first = Math.min(first, start / unit);
    last = Math.max(last, (start + duration) / unit);
  }
  samples.first = first === Infinity ? 0 : first;
  samples.last = Math.max(last, samples.first + 1);
}

function readSpans(reader) {
  const spans = [];
  const count = reader.number();
  for (let i = 0; i < count; i++) {
    const [trace, depth, service] = [reader.number(), reader.number(), reader.number()];
    const [start, duration] = [reader.number(), reader.number()];
    spans.push({ number: i + 1, trace, depth, service, start, duration });
  }
  reader.texts().forEach((name, i) => (spans[i].name = name));
  for (const span of spans) span.id = hexadecimal(reader.take(8));
  return spans;
}

export function hexadecimal(bytes) {
  let text = '';
  for (const byte of bytes) text += (byte + 256).toString(16).slice(1);
  return text;
}

export function traceId(samples, trace) {
  return hexadecimal(samples.traceBytes.subarray((trace - 1) * 16, trace * 16));
}

// The number of the trace with this ID, or 0.
export function traceWithId(samples, id) {
  for (let trace = 1; trace <= samples.traceCount; trace++) {
    if (traceId(samples, trace) === id) return trace;
  }
  return 0;
}
