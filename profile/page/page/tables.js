// The tables of functions, routes and traces.
import { element } from './state.js';
import { traceId } from './columns.js';
import { addUpRoutes, addUpTraces, largest } from './selection.js';
import { clock, duration, labelText, placeText, routeText } from './text.js';
import { seconds, serviceText, share, shortName } from './text.js';

// What a table's columns are called, by what they are sorted. The first is the row's name.
export const COLUMNS = {
  functions: [['Function'], ['Total', 'total'], ['Self', 'self']],
  routes: [['Route'], ['Time', 'time'], ['Share']],
  traces: [['Trace'], ['At', 'first'], ['CPU', 0], ['Queued', 1], ['Waiting', 2]],
};

// The columns that a recording has something for; a column of a kind is sorted by its number.
export function columnsOf(tab, { samples }) {
  const has = kind => samples !== null && samples.ofKind[kind].some(value => value > 0);
  return COLUMNS[tab].filter(([, sort]) => !(sort > 0) || has(sort));
}

// Returns the rows of a table: texts by column, a second line, and the selection that a row makes.
export function rowsOf(tab, context) {
  if (tab === 'functions') return functionRows(context);
  if (tab === 'routes') return routeRows(context);
  return context.model.samples ? traceRows(context) : { rows: [], found: 0 };
}

// A test for the text that rows are filtered by; undefined if there is none.
function filterOf(text, textOf) {
  const wanted = text.toLowerCase();
  return wanted ? i => textOf(i).toLowerCase().includes(wanted) : undefined;
}

function functionRows({ model, sums, sort, limit, filter }) {
  const { labelTotal, labelSelf } = sums;
  const values = (sort === 'total' ? labelTotal : labelSelf).subarray(0, model.first.service);
  const textOf = label => `${labelText(model, label)} ${placeText(model, label)}`;
  const { indexes, found } = largest(values, limit, filterOf(filter, textOf));
  const rows = indexes.map(label => {
    const full = labelText(model, label);
    return {
      texts: [shortName(full), duration(labelTotal[label]), duration(labelSelf[label])],
      full,
      place: placeText(model, label, 3),
      change: label < model.first.plumbing ? { text: full } : null,
    };
  });
  return { rows, found };
}

function routeRows({ model, weights, selection, limit, filter }) {
  const { pairs, totals } = addUpRoutes(model, weights);
  const whole = totals.reduce((sum, total) => sum + total, 0);
  const textOf = i => `${routeText(model.facts, pairs[i].route)} ${placeOf(i)}`;
  const placeOf = i => serviceText(model.facts.services[pairs[i].service]);
  const { indexes, found } = largest(totals, limit, filterOf(filter, textOf));
  const rows = indexes.map(i => {
    const full = routeText(model.facts, pairs[i].route);
    return {
      texts: [full, duration(totals[i]), share(totals[i], whole)],
      full,
      place: placeOf(i),
      change: pairs[i],
      current: selection.route === pairs[i].route && selection.service === pairs[i].service,
    };
  });
  return { rows, found };
}

function traceRows({ model, weights, selection, sort, limit, filter }) {
  const { samples } = model;
  const { ofKind, first, last } = addUpTraces(model, weights.below ?? weights.allowed, selection);
  // Traces without samples have no place in the table; a trace that only waited has.
  const exists = first.map(time => (time < Infinity ? 1e-6 : 0));
  const earliest = first.map(time => (time < Infinity ? samples.last + 1 - time : 0));
  const values = sort === 'first' ? earliest : ofKind[sort].map((value, i) => value + exists[i]);
  const textOf = trace => traceId(samples, trace);
  const { indexes, found } = largest(values, limit, filterOf(filter, textOf));
  const kinds = columnsOf('traces', model).slice(2);
  const length = trace => duration(((last[trace] - first[trace]) * model.facts.timeUnit) / 1000);
  const rows = indexes.map(trace => {
    const full = traceId(samples, trace);
    const at = `${seconds(model, first[trace]).toFixed(2)} s`;
    return {
      texts: [full, at, ...kinds.map(([, kind]) => duration(ofKind[kind][trace]))],
      full: `${full}, over ${length(trace)}`,
      place: clock(model, first[trace]),
      change: { trace },
      current: selection.trace === trace,
    };
  });
  return { rows, found };
}

// Shows rows in a table, reusing its elements: making them takes longer than changing their texts.
export class Table {
  constructor(element, choose) {
    this.head = element.tHead.rows[0];
    this.body = element.tBodies[0];
    this.body.replaceChildren();
    this.choose = choose;
    this.columns = 0;
  }

  show(columns, sort, { rows }, onSort) {
    this.showHead(columns, sort, onSort);
    if (this.columns !== columns.length) this.body.replaceChildren();
    this.columns = columns.length;
    rows.forEach((row, i) => this.showRow(this.body.rows[i] ?? this.addRow(columns.length), row));
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
  }

  showHead(columns, sort, onSort) {
    const key = JSON.stringify([columns, sort]);
    if (key === this.headKey) return;
    this.headKey = key;
    const cells = columns.map(([name, by]) => {
      if (by === undefined) return element('th', { scope: 'col', textContent: name });
      const order = by === 'first' ? 'ascending' : 'descending';
      const button = element('button', { textContent: name, onclick: () => onSort(by) });
      return element('th', { scope: 'col', ariaSort: by === sort ? order : 'none' }, button);
    });
    this.head.replaceChildren(...cells);
  }

  addRow(columns) {
    const row = this.body.insertRow();
    const button = element('button', {}, element('bdi'));
    button.onclick = () => row.change && this.choose(row.change);
    row.append(element('th', { scope: 'row' }, button, element('small', {}, element('bdi'))));
    for (let i = 1; i < columns; i++) row.insertCell();
    return row;
  }

  showRow(row, { texts, full, place, change, current }) {
    const [button, small] = row.cells[0].children;
    const set = (element, text) => {
      if (element.textContent !== text) element.textContent = text;
    };
    set(button.firstChild, texts[0]);
    button.title = full === texts[0] ? '' : full;
    button.disabled = change === null;
    set(small.firstChild, place);
    for (let i = 1; i < texts.length; i++) set(row.cells[i], texts[i]);
    row.change = change;
    row.ariaCurrent = current ? 'true' : null;
  }
}
