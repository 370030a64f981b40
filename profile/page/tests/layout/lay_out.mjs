// Lays out a page's whole recording with the page's own modules, and prints its boxes, a line each:
// row, left edge and width in the unit of weights, and text.
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [pages, file, plumbing] = process.argv.slice(2);
const module = name => import(pathToFileURL(`${pages}/${name}.js`));
const { readOverview, unpack } = await module('columns');
const { view } = await module('tree');
const { addUpNodes } = await module('selection');
const { JOINED, layout } = await module('icicle');
const { labelText } = await module('text');

const html = readFileSync(file, 'utf8');
const facts = JSON.parse(html.match(/id="facts">(.*?)<\/script>/s)[1]);
const sections = {};
for (const [, name, text] of html.matchAll(/data-section="(\w+)">([^<]*)<\/script>/g)) {
  sections[name] = await unpack(text.trim());
}
const model = readOverview(sections, facts);
const tree = view(model, { plumbing: plumbing === 'true', by: 'route' });
const totals = addUpNodes(tree, {
  weights: model.runningOfCell,
  allowed: new Uint8Array(model.cellCount).fill(1),
});
const width = 1200;
const boxes = layout(tree, totals, 0, width);
const scale = totals[0] / width;
const lines = boxes.node.map((node, i) => {
  const times = tree.times?.[node] > 1 ? ` × ${tree.times[node]}` : '';
  const text = node === JOINED ? '(joined)' : labelText(model, tree.label[node]) + times;
  return [boxes.row[i], Math.round(boxes.x[i] * scale), Math.round(boxes.width[i] * scale), text];
});
lines.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
console.log(lines.map(line => line.join(' ')).join('\n'));
