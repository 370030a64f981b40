// Computes what a selection contains. A selection has these fields, each of which may be absent:
// from and to (in the unit of times), trace, thread, service, route (0 for none), text, and kinds,
// a bit mask of 1 (running), 2 (queued), 4 (waiting) and 8 (idle: waiting without a context).

// Adds up the weights of selected samples by cell.
export class Selector {
  constructor(model) {
    this.model = model;
    this.weights = new Float64Array(model.cellCount);
    this.allowed = new Uint8Array(model.cellCount);
    this.range = { from: 0, to: 0 };
    this.key = '';
    this.allowedKey = '';
  }

  // Returns the weights of all cells, which cells the selection allows, and which have its text.
  select(selection) {
    this.allow(selection);
    const { samples } = this.model;
    if (!samples) this.weights.set(this.model.runningOfCell);
    else if (selection.trace) this.addTrace(selection);
    else if (selection.from === undefined && selection.thread === undefined)
      this.addKinds(selection);
    else this.addRange(selection);
    return { weights: this.weights, allowed: this.allowed, contains: this.contains };
  }

  // Which cells have the service, the route and the text.
  allow({ service, route, text }) {
    const key = JSON.stringify([service, route, text]);
    if (key === this.allowedKey) return;
    this.allowedKey = key;
    const { serviceOfCell, routeOfCell, cellCount } = this.model;
    const contains = (this.contains = text ? cellsWith(this.model, text) : null);
    for (let cell = 0; cell < cellCount; cell++) {
      const allowed =
        (service === undefined || serviceOfCell[cell] === service) &&
        (route === undefined || routeOfCell[cell] === route) &&
        (contains === null || contains[cell] === 1);
      this.allowed[cell] = allowed ? 1 : 0;
    }
  }

  // All samples of these kinds.
  addKinds({ kinds }) {
    this.key = '';
    this.weights.fill(0);
    this.model.samples.ofKind.forEach((totals, kind) => {
      if (!((kinds >> kind) & 1)) return;
      for (let cell = 0; cell < totals.length; cell++) this.weights[cell] += totals[cell];
    });
  }

  // The samples of one trace, in any order of times.
  addTrace({ trace, thread, kinds, from = -Infinity, to = Infinity }) {
    const { samples } = this.model;
    const { traceFrom, byTrace, kind, time, cell, weight, threads } = samples;
    this.key = '';
    this.weights.fill(0);
    for (let i = traceFrom[trace]; i < traceFrom[trace + 1]; i++) {
      const sample = byTrace[i];
      if (!((kinds >> kind[sample]) & 1) || time[sample] < from || time[sample] >= to) continue;
      if (thread !== undefined && !isWithin(threads[thread], sample)) continue;
      this.weights[cell[sample]] += weight[sample];
    }
  }

  // The samples of a range of time. If only the range differs from the last time, then what came is
  // added and what went is subtracted: weights are whole numbers, so that this is exact.
  addRange({ thread, kinds, from = 0, to = Infinity }) {
    const key = `${thread} ${kinds}`;
    if (key !== this.key) {
      this.weights.fill(0);
      this.range = { from: 0, to: 0 };
      this.key = key;
    }
    const { threads, time } = this.model.samples;
    for (let i = 0; i < threads.length; i++) {
      if (thread !== undefined && thread !== i) continue;
      const at = value => positionOf(time, threads[i], value);
      const [oldFrom, oldTo, newFrom, newTo] = [this.range.from, this.range.to, from, to].map(at);
      if (oldFrom >= oldTo || newFrom >= oldTo || newTo <= oldFrom) {
        this.add(oldFrom, oldTo, kinds, -1);
        this.add(newFrom, newTo, kinds, 1);
      } else {
        this.add(newFrom, oldFrom, kinds, 1);
        this.add(oldFrom, newFrom, kinds, -1);
        this.add(oldTo, newTo, kinds, 1);
        this.add(newTo, oldTo, kinds, -1);
      }
    }
    this.range = { from, to };
  }

  add(from, to, kinds, sign) {
    const { weights } = this;
    const { kind, cell, weight } = this.model.samples;
    for (let i = from; i < to; i++) {
      if ((kinds >> kind[i]) & 1) weights[cell[i]] += weight[i] * sign;
    }
  }
}

const isWithin = ({ from, to }, sample) => sample >= from && sample < to;

// The first of a thread's samples that is not before a time.
function positionOf(time, { from, to }, value) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (time[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

// Which functions have the text in their name or file.
export function functionsWith(model, text) {
  if (model.found?.text === text) return model.found.functions;
  const { names, files, fileOf } = model;
  model.lowerNames ??= names.map(name => name.toLowerCase());
  model.lowerFiles ??= files.map(file => file.toLowerCase());
  const wanted = text.toLowerCase();
  const inFile = model.lowerFiles.map(file => file.includes(wanted));
  const functions = new Uint8Array(names.length);
  for (let i = 0; i < names.length; i++) {
    if (inFile[fileOf[i]] || model.lowerNames[i].includes(wanted)) functions[i] = 1;
  }
  model.found = { text, functions };
  return functions;
}

// Which cells have such a function in their stack.
function cellsWith(model, text) {
  const found = functionsWith(model, text);
  const { count, parent, label } = model.full;
  const marked = new Uint8Array(count);
  for (let i = 1; i < count; i++) {
    marked[i] = marked[parent[i]] | (label[i] < found.length ? found[label[i]] : 0);
  }
  const cells = new Uint8Array(model.cellCount);
  for (let cell = 0; cell < cells.length; cell++) cells[cell] = marked[model.nodeOfCell[cell]];
  return cells;
}

// Adds up cells along the tree that is shown: totals of nodes, and totals and own time of labels in
// the stacks that have the node `zoom`.
export function addUpTree(model, tree, { weights, allowed }, zoom) {
  const { parent, label, outermost, at, count, end } = tree;
  tree.totals ??= new Float64Array(count);
  const totals = tree.totals.fill(0);
  const labelTotal = new Float64Array(model.labelCount);
  const labelSelf = new Float64Array(model.labelCount);
  for (let cell = 0; cell < weights.length; cell++) {
    if (allowed[cell] === 0 || weights[cell] === 0) continue;
    const node = at[cell];
    totals[node] += weights[cell];
    if (node >= zoom && node < end[zoom]) labelSelf[label[node]] += weights[cell];
  }
  for (let i = count - 1; i > 0; i--) {
    const total = totals[i];
    if (total === 0) continue;
    totals[parent[i]] += total;
    if (outermost[i] === 1 && i >= zoom && i < end[zoom]) labelTotal[label[i]] += total;
  }
  for (let i = parent[zoom]; i > 0; i = parent[i])
    if (outermost[i] === 1) labelTotal[label[i]] += totals[zoom];
  return { totals, labelTotal, labelSelf, total: totals[0] };
}

// Which of the allowed cells are at a node or below it.
export const cellsBelow = ({ at, end }, allowed, node) =>
  allowed.map((is, cell) => is && at[cell] >= node && at[cell] < end[node]);

// The totals of nodes alone.
export function addUpNodes({ parent, at, count }, { weights, allowed }) {
  const totals = new Float64Array(count);
  for (let cell = 0; cell < at.length; cell++) totals[at[cell]] += weights[cell] * allowed[cell];
  for (let i = count - 1; i > 0; i--) totals[parent[i]] += totals[i];
  return totals;
}

// The pairs of service and route that occur, and the weight of each: selected or not, so that
// another can be chosen, or where the graph is zoomed, that of its frame.
export function addUpRoutes(model, { weights, contains, below = contains }) {
  model.pairs ??= numberPairs(model);
  const { pairs, ofCell } = model.pairs;
  const totals = new Float64Array(pairs.length);
  for (let cell = 0; cell < weights.length; cell++) {
    if (!below || below[cell]) totals[ofCell[cell]] += weights[cell];
  }
  return { pairs, totals };
}

function numberPairs({ serviceOfCell, routeOfCell, cellCount, facts }) {
  const numbers = new Map();
  const pairs = [];
  const ofCell = new Uint32Array(cellCount);
  for (let cell = 0; cell < cellCount; cell++) {
    const [service, route] = [serviceOfCell[cell], routeOfCell[cell]];
    const key = service * (facts.routes.length + 1) + route;
    if (!numbers.has(key)) numbers.set(key, pairs.push({ service, route }) - 1);
    ofCell[cell] = numbers.get(key);
  }
  return { pairs, ofCell };
}

// Of each trace, selected or not, what the rest of the selection contains of it: weights by kind,
// the first and the last time.
export function addUpTraces(model, allowed, { thread, from = -Infinity, to = Infinity }) {
  const { samples } = model;
  const size = samples.traceCount + 1;
  const result = {
    ofKind: [0, 1, 2].map(() => new Float64Array(size)),
    first: new Float64Array(size).fill(Infinity),
    last: new Float64Array(size).fill(-Infinity),
  };
  const { time, cell, kind, weight, threads } = samples;
  const traces = samples.trace;
  for (let i = 0; i < threads.length; i++) {
    if (thread !== undefined && thread !== i) continue;
    const end = positionOf(time, threads[i], to);
    for (let k = positionOf(time, threads[i], from); k < end; k++) {
      const of = traces[k];
      if (of === 0 || allowed[cell[k]] === 0) continue;
      result.ofKind[kind[k]][of] += weight[k];
      if (time[k] < result.first[of]) result.first[of] = time[k];
      if (time[k] > result.last[of]) result.last[of] = time[k];
    }
  }
  return result;
}

// The indexes of the `count` largest values that pass a test, the largest first, and how many pass.
export function largest(values, count, passes = () => true) {
  const indexes = [];
  let found = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (!(value > 0) || !passes(i)) continue;
    found++;
    if (indexes.length === count && value <= values[indexes[count - 1]]) continue;
    // Most values end above: the few that are kept are sorted as they come.
    let place = indexes.length < count ? indexes.length : count - 1;
    for (; place > 0 && values[indexes[place - 1]] < value; place--)
      indexes[place] = indexes[place - 1];
    indexes[place] = i;
  }
  return { indexes, found };
}
