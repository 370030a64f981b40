// What the page knows and shows, which its parts share.

// Weights of threads that ran, in the bit mask of kinds.
export const RUNNING = 1;
// The kind of samples of threads that waited without a context.
export const IDLE = 3;
// Rows of a table before more are asked for.
export const ROWS = 50;

export const page = {
  // The recording, and what is computed of it; set by app.js.
  model: null,
  tree: null,
  weights: null,
  sums: null,
  boxes: null,
  running: null,
  // Described in selection.js.
  selection: { kinds: RUNNING },
  by: 'route',
  plumbing: false,
  tab: 'functions',
  sort: { functions: 'self', routes: 'time', traces: 0 },
  filter: '',
  rows: ROWS,
  // Nodes of the tree: what fills the width of the graph, and what arrow keys have moved to.
  zoom: 0,
  focus: 0,
  printing: false,
  colours: null,
  routes: null,
  // Of the graph and the time line. Reading these from the page makes it lay itself out.
  size: { width: 0, height: 0, lanes: 0 },
  scroll: 0,
};

export const $ = id => document.getElementById(id);

// Makes an element. Texts of the recording become text nodes, and never markup.
export function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// A text of the recording, whose direction does not change what is around it.
export const isolated = text => element('bdi', { textContent: text });
