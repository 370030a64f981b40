// Makes of the tree of all frames the one that is shown: without plumbing, grouped as asked.
import { emptyTree } from './columns.js';

// Sets where the nodes below each node end.
function setEnds({ count, parent, end }) {
  for (let i = 0; i < count; i++) end[i] = i + 1;
  for (let i = count - 1; i > 0; i--) if (end[i] > end[parent[i]]) end[parent[i]] = end[i];
}

// Sets what follows from parents, depths and labels.
function finish(tree, labelCount) {
  setEnds(tree);
  const { count, label, depth, outermost } = tree;
  const open = new Uint16Array(labelCount);
  const path = new Int32Array(4096);
  for (let i = 1, level = 0; i < count; i++) {
    while (level >= depth[i]) open[path[level--]]--;
    level = depth[i];
    path[level] = label[i];
    outermost[i] = open[label[i]]++ === 0 ? 1 : 0;
    if (level > tree.deepest) tree.deepest = level;
  }
  return tree;
}

// The tree that is shown. Each of the model's cells has its node there, `at`.
export function view(model, { plumbing, by }) {
  const { full } = model;
  if (!full.end[0]) setEnds(full);
  const hidden = hiddenNodes(model, plumbing, by);
  if (!hidden) {
    const shown = { ...full, at: model.nodeOfCell, through: new Uint16Array(full.count) };
    return finish(shown, model.labelCount);
  }
  const merged = merge(model, hidden);
  return finish(inPreOrder(merged, model.first.root), model.labelCount);
}

// A byte for each node that is left out, or null if all are shown. Of a function that calls itself,
// the outermost frame stands for the others.
function hiddenNodes({ full, first, plumbingOf }, plumbing, by) {
  const hidden = new Uint8Array(full.count);
  const nearest = new Int32Array(full.count).fill(-1);
  let any = 0;
  for (let i = 1; i < full.count; i++) {
    const label = full.label[i];
    let hide;
    const above = nearest[full.parent[i]];
    if (label < first.plumbing) hide = (!plumbing && plumbingOf[label] > 0) || label === above;
    else if (label < first.route) hide = by === 'none';
    else hide = by !== 'route' || isOnlyRoute(full, i, label === first.route);
    hidden[i] = hide ? 1 : 0;
    nearest[i] = hide ? above : label;
    any |= hidden[i];
  }
  return any ? hidden : null;
}

// "No route" says nothing where a service has no other.
const isOnlyRoute = ({ parent, end }, node, isNone) =>
  isNone && node === parent[node] + 1 && end[node] === end[parent[node]];

// Leaves nodes out: what is below one moves up to the nearest node that stays. Children that become
// equal are joined. A stack that ends in plumbing ends in one box for its kind.
function merge(model, hidden) {
  const { full, nodeOfCell, plumbingOf, first } = model;
  const size = full.count + model.cellCount + 1;
  const made = {
    count: 1,
    parent: new Int32Array(size),
    label: new Int32Array(size),
    // The most nodes left out above a node, and the most equal frames that it stands for.
    through: new Uint16Array(size),
    times: new Uint16Array(size).fill(1),
  };
  made.label[0] = -1;
  const child = childFinder(made, size);
  const place = new Int32Array(full.count);
  const [skipped, times] = [new Uint16Array(full.count), new Uint16Array(full.count).fill(1)];
  for (let i = 1; i < full.count; i++) {
    const above = full.parent[i];
    const isSame = full.label[i] === made.label[place[above]];
    const node = (place[i] = hidden[i] ? place[above] : child(place[above], full.label[i]));
    if (hidden[i] && !isSame) {
      skipped[i] = skipped[above] + (full.label[i] < first.plumbing ? 1 : 0);
      times[i] = times[above];
      continue;
    }
    times[i] = isSame && hidden[i] ? times[above] + 1 : 1;
    made.times[node] = Math.max(made.times[node], times[i]);
    made.through[node] = Math.max(made.through[node], skipped[above]);
  }
  made.end = nodeOfCell.map(node => {
    const label = full.label[node];
    const isShown = !hidden[node] || label === made.label[place[node]];
    if (isShown || label >= first.plumbing) return place[node];
    const end = child(place[node], first.plumbing + plumbingOf[label] - 1);
    made.through[end] = Math.max(made.through[end], skipped[node]);
    return end;
  });
  return made;
}

// Finds the child of a node with a label, or makes it: a hash table with linear probing.
function childFinder(made, size) {
  const bits = Math.max(1, Math.ceil(Math.log2(size * 1.25)));
  const table = new Int32Array(1 << bits);
  const mask = table.length - 1;
  const { parent, label } = made;
  return (above, name) => {
    let slot = (Math.imul(above, 0x9e3779b1) ^ Math.imul(name, 0x85ebca6b)) >>> (32 - bits);
    for (; table[slot] !== 0; slot = (slot + 1) & mask) {
      const node = table[slot];
      if (parent[node] === above && label[node] === name) return node;
    }
    parent[made.count] = above;
    label[made.count] = name;
    table[slot] = made.count;
    return made.count++;
  };
}

// Joined children can be far from their parent: sorts nodes into pre-order again.
function inPreOrder(made, rootLabel) {
  const { count, parent, label } = made;
  const [firstChild, nextSibling] = [0, 1].map(() => new Int32Array(count).fill(-1));
  for (let i = count - 1; i > 0; i--) {
    nextSibling[i] = firstChild[parent[i]];
    firstChild[parent[i]] = i;
  }
  const tree = emptyTree(count);
  [tree.through, tree.times] = [new Uint16Array(count), new Uint16Array(count)];
  const place = new Int32Array(count);
  for (let i = 0, node = 0; node >= 0; i++) {
    place[node] = i;
    tree.parent[i] = place[parent[node]];
    tree.depth[i] = i === 0 ? 0 : tree.depth[tree.parent[i]] + 1;
    tree.label[i] = i === 0 ? rootLabel : label[node];
    tree.through[i] = made.through[node];
    tree.times[i] = made.times[node];
    const below = firstChild[node];
    while (below < 0 && node > 0 && nextSibling[node] < 0) node = parent[node];
    node = below >= 0 ? below : node > 0 ? nextSibling[node] : -1;
  }
  tree.at = made.end.map(node => place[node]);
  return tree;
}
