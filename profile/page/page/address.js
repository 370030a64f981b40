// The page's address has the selection, so that a link shows the same.
import { $, RUNNING, page } from './state.js';
import { traceId, traceWithId } from './columns.js';

export function writeAddress() {
  const { service, route, trace, thread, from, to, text, kinds } = page.selection;
  const { facts, samples } = page.model;
  const address = new URLSearchParams();
  const add = (isGiven, key, value) => isGiven && address.set(key, value());
  add(service !== undefined, 'service', () => facts.services[service]);
  add(route !== undefined, 'route', () => (route === 0 ? '' : facts.routes[route - 1]));
  add(trace, 'trace', () => traceId(samples, trace));
  add(thread !== undefined, 'thread', () => threadText(samples.threads[thread]));
  add(from !== undefined, 'time', () => `${from}..${to}`);
  add(text, 'function', () => text);
  add(kinds !== RUNNING, 'kinds', () => kinds);
  add(page.by !== 'route', 'by', () => page.by);
  add(page.plumbing, 'plumbing', () => 1);
  add(page.tab !== 'functions', 'table', () => page.tab);
  const hash = address.size ? `#${address}` : '';
  if (hash === location.hash) return;
  history.replaceState(null, '', hash || location.pathname + location.search);
}

const threadText = ({ pid, tid }) => `${pid}/${tid}`;

// Takes what it knows, and says which selection is of something that the recording does not have.
export function readAddress() {
  const [address, missing] = [new URLSearchParams(location.hash.slice(1)), []];
  const { facts, samples } = page.model;
  const known = (key, values) => (values.includes(address.get(key)) ? address.get(key) : undefined);
  const selection = { kinds: Number(known('kinds', [...'12478']) ?? $('kinds').value) };
  const find = (key, indexOf) => {
    const index = address.has(key) ? indexOf(address.get(key)) : undefined;
    if (index >= 0) selection[key] = index;
    else if (index < 0) missing.push(key);
  };
  find('service', name => facts.services.indexOf(name));
  find('route', name => (name === '' ? 0 : facts.routes.indexOf(name) + 1 || -1));
  find('trace', id => traceWithId(samples, id) || -1);
  find('thread', id => samples.threads.findIndex(thread => threadText(thread) === id));
  const [from, to] = (address.get('time') ?? '').split('..').map(Number);
  if (from < to) Object.assign(selection, { from, to });
  if (address.get('function')) selection.text = address.get('function');
  $('stale').textContent = missing.map(key => `This recording lacks the link's ${key}.`).join(' ');
  page.by = known('by', ['route', 'service', 'none']) ?? page.by;
  page.plumbing = address.get('plumbing') === '1';
  page.tab = known('table', ['routes', 'traces']) ?? 'functions';
  [page.selection, page.zoom, page.focus] = [selection, 0, 0];
}
