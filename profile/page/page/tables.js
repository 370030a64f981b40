// The tables of functions, routes and traces.
import { traceId } from './columns.js';
import { addUpRoutes, addUpTraces, largest } from './selection.js';
import { clock, duration, labelText, placeText, routeText, serviceText, share, shortName } from './text.js';

// What a table's columns are called, by what they are sorted. The first is the row's name.
export const COLUMNS = {
  functions: [['Function'], ['Total', 'total'], ['Self', 'self']],
  routes: [['Route'], ['Time', 'time'], ['Share', 'time']],
  traces: [['Trace'], ['First seen', 'first'], ['CPU', 'running'], ['Queued', 'queued'], ['Waiting', 'waiting']],
};
export const DEFAULT_SORT = { functions: 'self', routes: 'time', traces: 'running' };

// The columns that a recording has something for.
export function columnsOf(tab, model) {
  const { samples } = model;
  const has = (kind) => samples !== null && samples.ofKind[kind].some((value) => value > 0);
  return COLUMNS[tab].filter(
    ([, sort]) => (sort !== 'queued' || has(1)) && (sort !== 'waiting' || has(2)),
  );
}

// Returns the rows of a table: texts by column, a second line, and the selection that a row makes.
export function rowsOf(tab, context) {
  if (tab === 'functions') return functionRows(context);
  if (tab === 'routes') return routeRows(context);
  return context.model.samples ? traceRows(context) : { rows: [], found: 0 };
}

// A test for the text that rows are filtered by.
const filterOf = (text) => {
  const wanted = text.toLowerCase();
  return wanted ? (name) => name.toLowerCase().includes(wanted) : null;
};

function functionRows({ model, sums, sort, limit, filter }) {
  const values = (sort === 'total' ? sums.labelTotal : sums.labelSelf).subarray(0, model.first.service);
  const passes = filterOf(filter);
  const test = passes && ((label) => passes(`${labelText(model, label)} ${placeText(model, label)}`));
  const { indexes, found } = largest(values, limit, test ?? undefined);
  const rows = indexes.map((label) => {
    const name = labelText(model, label);
    return {
      texts: [shortName(name), duration(sums.labelTotal[label]), duration(sums.labelSelf[label])],
      full: name,
      place: placeText(model, label, 3),
      change: label < model.first.plumbing ? { text: name } : null,
      current: false,
    };
  });
  return { rows, found };
}

function routeRows({ model, weights, sums, selection, limit, filter }) {
  const { facts } = model;
  const routes = facts.routes.length + 1;
  const totals = addUpRoutes(model, weights);
  const name = (i) => routeText(facts, i % routes);
  const service = (i) => serviceText(facts.services[Math.floor(i / routes)]);
  const passes = filterOf(filter);
  const test = passes && ((i) => passes(`${name(i)} ${service(i)}`));
  const { indexes, found } = largest(totals, limit, test ?? undefined);
  const rows = indexes.map((i) => {
    const change = { service: Math.floor(i / routes), route: i % routes };
    return {
      texts: [name(i), duration(totals[i]), share(totals[i], sums.total)],
      full: name(i),
      place: service(i),
      change,
      current: selection.route === change.route && (selection.service ?? change.service) === change.service,
    };
  });
  return { rows, found };
}

function traceRows({ model, weights, selection, sort, limit, filter }) {
  const { samples } = model;
  const { ofKind, first, last } = addUpTraces(model, weights.allowed, selection);
  const total = ofKind[0].map((value, i) => value + ofKind[1][i] + ofKind[2][i]);
  const values = {
    // The earliest first. Traces without samples have no place in the table.
    first: first.map((time, i) => (total[i] > 0 ? samples.last + 1 - time : 0)),
    running: total.map((value, i) => (value > 0 ? ofKind[0][i] + 1e-6 : 0)),
    queued: ofKind[1],
    waiting: ofKind[2],
  }[sort];
  const passes = filterOf(filter);
  const test = passes && ((trace) => passes(traceId(samples, trace)));
  const { indexes, found } = largest(values, limit, test ?? undefined);
  const kinds = columnsOf('traces', model).slice(2);
  const texts = { running: 0, queued: 1, waiting: 2 };
  const rows = indexes.map((trace) => ({
    texts: [
      traceId(samples, trace),
      clock(model, first[trace]),
      ...kinds.map(([, kind]) => duration(ofKind[texts[kind]][trace])),
    ],
    full: traceId(samples, trace),
    place: `over ${duration(((last[trace] - first[trace]) * model.facts.timeUnit) / 1000)}`,
    change: { trace },
    current: selection.trace === trace,
  }));
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
    const cells = columns.map(([name, by], i) => {
      const cell = document.createElement('th');
      cell.scope = 'col';
      if (i === 0 || !by) {
        cell.textContent = name;
        return cell;
      }
      const button = document.createElement('button');
      button.textContent = name;
      button.onclick = () => onSort(by);
      cell.ariaSort = by === sort ? (by === 'first' ? 'ascending' : 'descending') : 'none';
      cell.append(button);
      return cell;
    });
    this.head.replaceChildren(...cells);
  }

  addRow(columns) {
    const row = this.body.insertRow();
    const name = document.createElement('th');
    name.scope = 'row';
    const [button, text, small, place] = ['button', 'bdi', 'small', 'bdi'].map((tag) =>
      document.createElement(tag),
    );
    button.append(text);
    small.append(place);
    name.append(button, small);
    row.append(name);
    for (let i = 1; i < columns; i++) row.insertCell();
    button.onclick = () => row.change && this.choose(row.change);
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
