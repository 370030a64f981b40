// The icicle graph: callers above, what they call below, as wide as their time.
import { duration, labelText, shortName } from './text.js';
import { PLUMBING, WAITING, shadeOf } from './colours.js';

export const ROW_HEIGHT = 19;
// Narrower frames are joined with their neighbours.
const MIN_WIDTH = 1.2;
// The node of a box of joined frames.
export const JOINED = -1;
const FONT = '12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const WIDE_CHARACTER = 12;
const MIN_TEXT_WIDTH = 26;

// Places the boxes of a tree: the ancestors of `zoom`, it and what is below it, which fill `width`.
export function layout(tree, totals, zoom, width) {
  const boxes = { x: [], width: [], row: [], node: [], rows: 0, count: 0 };
  for (const node of pathTo(tree, zoom)) put(boxes, 0, width, tree.depth[node], node);
  const scale = width / (totals[zoom] || 1);
  // Where the next child starts, and the last joined box, by row.
  const next = new Float64Array(tree.deepest + 3);
  const joined = new Int32Array(tree.deepest + 3).fill(-1);
  for (let i = zoom + 1; i < tree.end[zoom];) {
    const total = totals[i];
    const row = tree.depth[i];
    const x = next[row];
    next[row] = x + total;
    next[row + 1] = x;
    if (total * scale >= MIN_WIDTH) {
      put(boxes, x * scale, total * scale, row, i);
      i++;
      continue;
    }
    if (total > 0) join(boxes, joined, x * scale, total * scale, row);
    i = tree.end[i];
  }
  boxes.rows = boxes.row.reduce((most, row) => Math.max(most, row + 1), 1);
  boxes.count = boxes.x.length;
  return boxes;
}

function pathTo(tree, node) {
  const path = [node];
  while (node > 0) path.push((node = tree.parent[node]));
  return path.reverse();
}

function put(boxes, x, width, row, node) {
  boxes.x.push(x);
  boxes.width.push(width);
  boxes.row.push(row);
  boxes.node.push(node);
}

// Adds a narrow frame to the joined box on its left, or starts one.
function join(boxes, joined, x, width, row) {
  const last = joined[row];
  if (last >= 0 && Math.abs(boxes.x[last] + boxes.width[last] - x) < 0.01) {
    boxes.width[last] += width;
    return;
  }
  joined[row] = boxes.x.length;
  put(boxes, x, width, row, JOINED);
}

// The box at a point, or -1.
export function boxAt(boxes, x, y) {
  const row = Math.floor(y / ROW_HEIGHT);
  for (let i = 0; i < boxes.count; i++) {
    if (boxes.row[i] === row && boxes.x[i] <= x && x < boxes.x[i] + boxes.width[i]) return i;
  }
  return -1;
}

// The boxes with the same caller, from left to right.
export function siblings(boxes, tree, node) {
  if (node === 0) return [0];
  return boxes.node.filter(other => other > 0 && tree.parent[other] === tree.parent[node]);
}

export function firstChild(boxes, tree, node) {
  return boxes.node.find(other => other > 0 && tree.parent[other] === node) ?? -1;
}

// Draws boxes on a canvas that shows a part of the rows.
export class Icicle {
  constructor(canvas, model) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false });
    this.model = model;
    this.widths = null;
    this.shades = new Map();
  }

  // Draws the rows from `scroll` on. Functions that a search did not find are pale.
  draw(shown, height, scroll) {
    const { boxes, tree, colours, found, running } = shown;
    // White text would not stand out from a lighter tone of a service or a route.
    const light = colours.languages.filter((_, i) => i !== WAITING).flat();
    const [isLight, waiting] = [new Set([...light, colours.root]), []];
    this.resize(shown.size.width, height, colours);
    const first = Math.floor(scroll / ROW_HEIGHT);
    const last = Math.ceil((scroll + height) / ROW_HEIGHT);
    const ofColour = new Map();
    for (let i = 0; i < boxes.count; i++) {
      if (boxes.row[i] < first || boxes.row[i] > last) continue;
      const colour = this.colour(boxes.node[i], tree, colours, found);
      const list = ofColour.get(colour);
      if (list) list.push(i);
      else ofColour.set(colour, [i]);
    }
    const { context } = this;
    // Few changes of colour: they cost more than boxes.
    for (const [colour, list] of ofColour) {
      context.fillStyle = colour;
      for (const i of list) {
        const gap = boxes.width[i] > 2.5 ? 1 : 0;
        const y = boxes.row[i] * ROW_HEIGHT - scroll;
        context.fillRect(boxes.x[i], y, boxes.width[i] - gap, ROW_HEIGHT - 1);
        if (running && isLight.has(colour)) waiting.push(i);
      }
    }
    context.fillStyle = colours.faded;
    for (const i of waiting) {
      const part = boxes.width[i] * (1 - running[boxes.node[i]] / tree.totals[boxes.node[i]]);
      const x = boxes.x[i] + boxes.width[i] - part;
      context.fillRect(x, boxes.row[i] * ROW_HEIGHT - scroll, part, ROW_HEIGHT - 1);
    }
    for (const list of ofColour.values()) {
      for (const i of list) {
        const y = boxes.row[i] * ROW_HEIGHT - scroll;
        if (boxes.node[i] !== JOINED) {
          this.drawText(boxes.x[i], y, boxes.width[i], boxes.node[i], shown);
        }
      }
    }
    this.drawFocus(boxes, boxes.node.indexOf(shown.focus), colours, scroll);
  }

  resize(width, height, colours) {
    const { canvas, context } = this;
    const ratio = globalThis.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colours.background;
    context.fillRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = 'middle';
    this.widths ??= this.measure();
  }

  // The widths of ASCII: measuring each text would take longer than drawing.
  measure() {
    const widths = new Float32Array(128);
    for (let code = 32; code < 127; code++) {
      widths[code] = this.context.measureText(String.fromCharCode(code)).width;
    }
    this.ellipsis = this.context.measureText('…').width;
    return widths;
  }

  colour(node, tree, colours, found) {
    if (node === JOINED) return colours.joined;
    const { first, languageOf } = this.model;
    const label = tree.label[node];
    if (label === first.root) return colours.root;
    if (label >= first.route) return colours.route;
    if (label >= first.service) return colours.service;
    if (found && !found[label]) return colours.joined;
    if (label >= first.plumbing) return colours.languages[PLUMBING][1];
    return colours.languages[languageOf[label]][this.shade(label)];
  }

  shade(label) {
    let shade = this.shades.get(label);
    if (shade === undefined) {
      const { files, fileOf, names } = this.model;
      this.shades.set(label, (shade = shadeOf(files[fileOf[label]] || names[label])));
    }
    return shade;
  }

  // The text of a box, and the stripe with the colour that a route has in the time line.
  drawText(x, y, width, node, { tree, colours, routes }) {
    const { context, model } = this;
    const { first } = model;
    const label = tree.label[node];
    const isRoute = label > first.route && label < first.root && width >= 8;
    if (isRoute) {
      context.fillStyle = colours.routes[routes.colours[label - first.route]];
      context.fillRect(x, y, 5, ROW_HEIGHT - 1);
    }
    const left = isRoute ? 9 : 4;
    if (width < MIN_TEXT_WIDTH) return;
    const text = this.textOf(tree, node, width - left - 4);
    if (label < first.service || label === first.root) context.fillStyle = colours.text;
    else context.fillStyle = label < first.route ? colours.serviceText : colours.routeText;
    if (text) context.fillText(text, x + left, y + ROW_HEIGHT / 2);
  }

  // A level above frames has its time with it; a long name of a function is shortened first.
  textOf(tree, node, space) {
    const label = tree.label[node];
    const name = labelText(this.model, label);
    const total = duration(tree.totals[node]);
    if (label >= this.model.first.service) return this.fit(`${name}  ${total}`, space);
    const times = text => (tree.times?.[node] > 1 ? `${text} × ${tree.times[node]}` : text);
    const text = this.fit(times(name), space);
    return text === times(name) ? text : this.fit(times(shortName(name)), space);
  }

  // As much of a text as there is space for.
  fit(text, space) {
    const { widths, ellipsis } = this;
    const widthOf = i => widths[text.charCodeAt(i)] ?? WIDE_CHARACTER;
    let width = 0;
    for (let i = 0; i < text.length; i++) {
      width += widthOf(i);
      if (width <= space) continue;
      while (i >= 0 && width + ellipsis > space) width -= widthOf(i--);
      return i < 1 ? '' : `${text.slice(0, i + 1)}…`;
    }
    return text;
  }

  drawFocus(boxes, i, colours, scroll) {
    if (i < 0) return;
    this.context.strokeStyle = colours.focus;
    this.context.lineWidth = 2;
    const y = boxes.row[i] * ROW_HEIGHT - scroll;
    this.context.strokeRect(boxes.x[i] + 1, y + 1, Math.max(2, boxes.width[i] - 3), ROW_HEIGHT - 3);
  }
}
