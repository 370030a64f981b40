// What readers do with the icicle graph: zoom, move with arrow keys, read what a frame is.
import { $, element, isolated, page } from './state.js';
import { LANGUAGES, duration, labelText, placeText, share } from './text.js';
import { JOINED, ROW_HEIGHT, boxAt, firstChild, layout, siblings } from './icicle.js';

const MAX_PRINTED_ROWS = 60;
const MAX_TIP_LENGTH = 600;

// Draws the graph; without `moved`, its boxes are where they were.
export function drawGraph(moved = true) {
  const { tree, sums, size, printing } = page;
  if (moved) page.boxes = layout(tree, sums.totals, page.zoom, size.width);
  const rows = printing ? Math.min(page.boxes.rows, MAX_PRINTED_ROWS) : page.boxes.rows;
  $('space').style.height = `${rows * ROW_HEIGHT}px`;
  const height = printing ? rows * ROW_HEIGHT : size.height;
  const lowest = Math.max(0, rows * ROW_HEIGHT - height);
  page.icicle.draw(page, height, Math.min(page.scroll, lowest));
  describeFocus();
}

// Tells screen readers about the frame that arrow keys have moved to.
function describeFocus() {
  const { focus, tree, boxes } = page;
  const around = siblings(boxes, tree, focus);
  const node = $('node');
  node.ariaLevel = tree.depth[focus] + 1;
  node.ariaPosInSet = around.indexOf(focus) + 1;
  node.ariaSetSize = around.length;
  node.ariaExpanded = String(firstChild(boxes, tree, focus) >= 0);
  node.textContent = describe(focus).join(', ');
}

// A frame's name, place, time, and what else is known of it.
export function describe(node) {
  const { model, tree, sums } = page;
  const label = tree.label[node];
  const total = sums.totals[node];
  const time = `${duration(total)}, ${share(total, sums.total)}`;
  if (label >= model.first.service) return [labelText(model, label), time];
  const parts = [labelText(model, label), placeText(model, label), time];
  if (label < model.first.plumbing) parts.push(LANGUAGES[model.languageOf[label]]);
  const times = tree.times?.[node] ?? 1;
  if (times > 1) parts.push(`calls itself, up to ${times} frames in one`);
  const frames = tree.through[node];
  const counted = `${frames} ${frames === 1 ? 'frame' : 'frames'}`;
  if (frames) parts.push(`called through up to ${counted} of plumbing`);
  return parts.filter(Boolean);
}

export function zoomTo(node) {
  page.zoom = page.focus = node;
  // The tables follow.
  page.update();
  scrollToFocus();
}

function moveTo(node) {
  if (node === undefined || node < 0) return;
  page.focus = node;
  scrollToFocus();
  drawGraph(false);
}

function scrollToFocus() {
  const y = page.tree.depth[page.focus] * ROW_HEIGHT;
  const isVisible = y >= page.scroll && y <= page.scroll + page.size.height - 2 * ROW_HEIGHT;
  if (!isVisible) $('graph').scrollTop = y - 2 * ROW_HEIGHT;
}

export function bindGraph() {
  const graph = $('graph');
  const boxUnder = event => {
    const area = $('space').getBoundingClientRect();
    return boxAt(page.boxes, event.clientX - area.left, event.clientY - area.top);
  };
  graph.addEventListener('click', event => {
    const node = page.boxes.node[boxUnder(event)] ?? JOINED;
    if (node !== JOINED) zoomTo(node);
  });
  graph.addEventListener('mousemove', event => showTip(boxUnder(event), event));
  graph.addEventListener('mouseleave', () => ($('tip').hidden = true));
  graph.addEventListener('scroll', () => {
    page.scroll = graph.scrollTop;
    drawGraph(false);
  });
  graph.addEventListener('keydown', press);
}

function press(event) {
  const { focus, boxes, tree } = page;
  const around = siblings(boxes, tree, focus);
  const beside = step => around[around.indexOf(focus) + step];
  const moves = {
    ArrowDown: () => moveTo(firstChild(boxes, tree, focus)),
    ArrowUp: () => moveTo(tree.parent[focus]),
    ArrowLeft: () => moveTo(beside(-1)),
    ArrowRight: () => moveTo(beside(1)),
    Home: () => zoomTo(0),
    Enter: () => zoomTo(focus),
    Escape: () => zoomTo(tree.parent[page.zoom]),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}

function showTip(box, event) {
  const tip = $('tip');
  tip.hidden = box < 0;
  if (box < 0) return;
  const node = page.boxes.node[box];
  const [name, ...rest] = node === JOINED ? ['frames that are too narrow'] : describe(node);
  const shown = name.length > MAX_TIP_LENGTH ? `${name.slice(0, MAX_TIP_LENGTH)}…` : name;
  tip.replaceChildren(element('b', {}, isolated(shown)), isolated(rest.join(' · ')));
  const [right, bottom] = [innerWidth - tip.offsetWidth - 4, innerHeight - tip.offsetHeight - 4];
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, right))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, bottom))}px`;
}
