// CPU time of each service over time, stacked by route; time that threads waited is a lighter tone.
import { samplesOf } from './columns.js';
import { NO_ROUTE, OTHER_ROUTES, pixel } from './colours.js';
import { IDLE } from './state.js';
import { routeText, seconds, serviceText } from './text.js';

const LANE_HEIGHT = 26;
const AXIS_HEIGHT = 16;
// Services with a lane of their own; the others share one.
const MAX_LANES = 4;
const COLOURS = NO_ROUTE + 1;
const COLUMN_WIDTH = 2;
// How strong the colour of a route is for time in which threads did not run.
export const WAITING_TONE = 0.35;
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300];

// The services with most time, each with a lane, and one for all others.
export function lanesOf(model, serviceTotals) {
  const { services } = model.facts;
  const byTotal = (a, b) => serviceTotals[b] - serviceTotals[a] || a - b;
  const order = [...services.keys()].sort(byTotal);
  const own = order.length <= MAX_LANES ? order : order.slice(0, MAX_LANES - 1);
  const laneOf = new Uint8Array(services.length).fill(own.length);
  own.forEach((service, lane) => (laneOf[service] = lane));
  const names = own.map(service => serviceText(services[service]));
  if (own.length < order.length) names.push(`${order.length - own.length} other services`);
  return { laneOf, names };
}

export class Timeline {
  constructor(canvas, model, lanes, colourOfRoute) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false });
    this.model = model;
    this.lanes = lanes;
    this.colourOfCell = model.routeOfCell.map(route => colourOfRoute[route]);
    this.height = lanes.names.length * LANE_HEIGHT + AXIS_HEIGHT;
  }

  // Draws all samples, and in grey what `selected` does not allow. Null stands for all.
  draw(width, colours, selected) {
    if (this.width !== width) this.binAll(width);
    const bins = selected ? this.binSelected(selected) : this.bins;
    const { canvas, context } = this;
    const ratio = globalThis.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(this.height * ratio);
    canvas.style.height = `${this.height}px`;
    context.fillStyle = colours.background;
    context.fillRect(0, 0, canvas.width, canvas.height);
    for (let lane = 0; lane < this.lanes.names.length; lane++) {
      this.drawLane(lane, bins, colours, ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawNames(colours);
    this.drawAxis(width, colours);
  }

  // Bins of a lane and a column: running time by colour, then waiting time by colour. A sample's
  // slot is where the bins of its lane, kind and column start, its width the number of columns.
  binAll(width) {
    this.width = width;
    this.columns = Math.max(1, Math.floor(width / COLUMN_WIDTH));
    const { samples } = this.model;
    const scale = this.columns / (samples.last - samples.first + 1);
    const scaleOfWeight = (scale * 1000) / this.model.facts.timeUnit;
    this.slots = new Uint32Array(samples.count);
    this.widths = new Uint8Array(samples.count);
    for (const { service, from, to } of samples.threads) {
      const lane = this.lanes.laneOf[service] * 2 * COLOURS * this.columns;
      for (let i = from; i < to; i++) {
        const tone = samples.kind[i] === 0 ? 0 : COLOURS * this.columns;
        const column = Math.floor((samples.time[i] - samples.first) * scale);
        this.slots[i] = lane + tone + column;
        const width = Math.min(samples.weight[i] * scaleOfWeight, this.columns - column, 255);
        this.widths[i] = Math.max(1, Math.round(width));
      }
    }
    this.bins = this.emptyBins();
    this.bin(this.bins, 0, samples.count, this.rowsOf(null));
  }

  emptyBins = () => new Float64Array(this.lanes.names.length * 2 * COLOURS * this.columns);

  // It goes over all samples when the selection changes.
  bin(bins, from, to, rows) {
    const { weight, cell, kind } = this.model.samples;
    const { slots, widths } = this;
    for (let i = from; i < to; i++) {
      const row = kind[i] < IDLE ? rows[cell[i]] : -1;
      if (row < 0) continue;
      const start = slots[i] + row;
      for (let k = 0; k < widths[i]; k++) bins[start + k] += weight[i] / widths[i];
    }
  }

  // By cell: where the bins of its colour start, or -1 if it is not allowed.
  rowsOf(allowed) {
    const { colourOfCell, columns } = this;
    const rows = new Int32Array(colourOfCell.length).fill(-1);
    for (let cell = 0; cell < rows.length; cell++) {
      if (allowed === null || allowed[cell] === 1) rows[cell] = colourOfCell[cell] * columns;
    }
    return rows;
  }

  // The bins of a trace, a thread, or the cells that a selection allows.
  binSelected({ allowed, trace, thread }) {
    const { samples } = this.model;
    const bins = this.emptyBins();
    const rows = this.rowsOf(allowed);
    if (trace) {
      for (const i of samplesOf(samples, trace)) this.bin(bins, i, i + 1, rows);
    } else if (thread !== undefined) {
      const { from, to } = samples.threads[thread];
      this.bin(bins, from, to, rows);
    } else {
      this.bin(bins, 0, samples.count, rows);
    }
    return bins;
  }

  // Stacks the selected running time, the selected waiting time, and what is not selected.
  drawLane(lane, bins, colours, ratio) {
    const { columns, canvas } = this;
    const height = Math.round((LANE_HEIGHT - 2) * ratio);
    const image = this.context.createImageData(canvas.width, height);
    const toneOf = (colour, strength) => pixel(this.context, colour, colours.background, strength);
    const pixels = new Uint32Array(image.data.buffer).fill(toneOf(colours.background, 1));
    const start = lane * 2 * COLOURS * columns;
    const scale = height / this.highest(start);
    const all = [...colours.routes, colours.noRoute];
    const tones = [...all.map(it => toneOf(it, 1)), ...all.map(it => toneOf(it, WAITING_TONE))];
    const grey = toneOf(colours.unselected, 1);
    for (let column = 0; column < columns; column++) {
      const from = Math.round((column * canvas.width) / columns);
      const to = Math.round(((column + 1) * canvas.width) / columns);
      let [sum, bottom, whole] = [0, height, 0];
      for (let tone = 0; tone < 2 * COLOURS; tone++) {
        const value = bins[start + tone * columns + column];
        whole += this.bins[start + tone * columns + column];
        if (value === 0) continue;
        sum += value;
        const top = Math.round(height - sum * scale);
        fillRows(pixels, canvas.width, from, to, top, bottom, tones[tone]);
        bottom = top;
      }
      fillRows(pixels, canvas.width, from, to, Math.round(height - whole * scale), bottom, grey);
    }
    this.context.putImageData(image, 0, Math.round((lane * LANE_HEIGHT + 1) * ratio));
  }

  // The largest sum of a lane's columns.
  highest(start) {
    let highest = 1;
    for (let column = 0; column < this.columns; column++) {
      let sum = 0;
      const end = start + 2 * COLOURS * this.columns;
      for (let i = start + column; i < end; i += this.columns) sum += this.bins[i];
      if (sum > highest) highest = sum;
    }
    return highest;
  }

  drawNames(colours) {
    const { context } = this;
    context.font = '11px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
    context.textBaseline = 'top';
    this.lanes.names.forEach((name, lane) => {
      const shown = name.length > 40 ? `${name.slice(0, 39)}…` : name;
      context.fillStyle = colours.background;
      context.fillRect(0, lane * LANE_HEIGHT, context.measureText(shown).width + 6, 14);
      context.fillStyle = colours.text;
      context.fillText(shown, 2, lane * LANE_HEIGHT + 1);
    });
  }

  // Seconds since the first sample.
  drawAxis(width, colours) {
    const { context, model } = this;
    const whole = seconds(model, model.samples.last);
    const step = STEPS.find(value => (width * value) / whole > 80) ?? whole / 4;
    const y = this.height - AXIS_HEIGHT;
    context.fillStyle = colours.text;
    for (let at = 0; at < whole; at += step) {
      const x = (at / whole) * width;
      const text = `${+at.toFixed(3)} s`;
      if (x + context.measureText(text).width + 4 > width) break;
      context.fillRect(x, y, 1, 4);
      context.fillText(text, x + 3, y + 2);
    }
  }
}

function fillRows(pixels, stride, from, to, top, bottom, value) {
  for (let y = Math.max(top, 0); y < bottom; y++) {
    pixels.fill(value, y * stride + from, y * stride + to);
  }
}

// The colours of routes: the costliest have their own.
export function routeColours(model, routeTotals) {
  const colours = new Uint8Array(routeTotals.length).fill(OTHER_ROUTES);
  const byTotal = (a, b) => routeTotals[b] - routeTotals[a] || a - b;
  const order = [...routeTotals.keys()].slice(1).sort(byTotal);
  const listed = order.slice(0, OTHER_ROUTES);
  listed.forEach((route, i) => (colours[route] = i));
  colours[0] = NO_ROUTE;
  return { colours, listed, rest: order.length - listed.length };
}

// What the legend of routes lists: names with colours.
export function routeLegend({ facts }, { listed, rest }, colours) {
  const entries = listed.map((route, i) => [routeText(facts, route), colours.routes[i]]);
  const others = `${rest} other ${rest === 1 ? 'route' : 'routes'}`;
  if (rest) entries.push([others, colours.routes[OTHER_ROUTES]]);
  return listed.length ? [...entries, ['no route', colours.noRoute]] : [];
}
