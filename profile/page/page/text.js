// Writes values as text.

export const LANGUAGES = ['Python', 'JavaScript', 'Java', 'native', 'kernel', 'other', 'waiting'];

// A whole number with commas between thousands. `toLocaleString` takes a tenth of a table's time.
export function grouped(number) {
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, ',');
}

// A weight in microseconds, with three digits that count.
export function duration(microseconds) {
  const milliseconds = microseconds / 1000;
  if (milliseconds >= 10_000) return `${grouped(milliseconds / 1000)} s`;
  if (milliseconds >= 100) return `${grouped(milliseconds)} ms`;
  if (milliseconds === 0) return '0 ms';
  return `${milliseconds.toFixed(milliseconds < 1 ? 2 : 1)} ms`;
}

export function share(part, whole) {
  return whole > 0 ? `${((part / whole) * 100).toFixed(1)} %` : '0 %';
}

// Seconds after the first sample.
export function seconds(model, time) {
  return ((time - model.samples.first) * model.facts.timeUnit) / 1e9;
}

export const timeAt = ({ facts, samples }, value) => (value * 1e9) / facts.timeUnit + samples.first;

// The local time of day, and its offset from UTC: `14:03:00.125` and `GMT+0200`.
export function clock(model, time) {
  const date = new Date(model.facts.start + (time * model.facts.timeUnit) / 1e6);
  const milliseconds = String(date.getMilliseconds()).padStart(3, '0');
  return Number.isNaN(date.getTime()) ? '' : `${date.toTimeString().slice(0, 8)}.${milliseconds}`;
}

export const offset = model => new Date(model.facts.start).toTimeString().split(' ')[1];

// What a label of the tree says.
export function labelText({ first, facts, names }, label) {
  if (label < first.plumbing) return names[label];
  if (label < first.service) return `[${facts.plumbing[label - first.plumbing]}]`;
  if (label < first.route) return serviceText(facts.services[label - first.service]);
  if (label < first.root) return routeText(facts, label - first.route);
  return 'All';
}

// SDKs name a service so if nobody else did; what follows is the command.
export const serviceText = service => service.replace(/^unknown_service:/, '');

export function routeText(facts, route) {
  if (route === 0) return facts.by ? `(no ${facts.by})` : '(no route)';
  return facts.routes[route - 1] || '(empty)';
}

// The file and line of a function, or what it is written in.
export function placeText({ first, files, fileOf, lineOf, languageOf }, label, parts = Infinity) {
  if (label >= first.plumbing) return label < first.service ? 'stacks that end in plumbing' : '';
  const file = files[fileOf[label]];
  if (!file) return languageOf[label] === 5 ? '' : LANGUAGES[languageOf[label]];
  const shown = parts === Infinity ? file : file.split('/').slice(-parts).join('/');
  return lineOf[label] ? `${shown}:${lineOf[label]}` : shown;
}

// The last two parts of a qualified name, without type arguments; names in brackets stay whole.
export function shortName(name) {
  if (!name.includes('::')) {
    const parts = /[\[< ]/.test(name) ? [] : name.split('.');
    return parts.length > 3 ? parts.slice(-2).join('.') : name;
  }
  // `<Type as Trait>::function` is a function of the type.
  const path = name.slice(0, 400).replace(/^<(.*?)(?: as .*?)?>(?=::)/, '$1');
  let [plain, depth] = ['', 0];
  for (const character of path) {
    if (character === '<') depth++;
    else if (character === '>' && depth > 0) depth--;
    else if (depth === 0) plain += character;
  }
  return plain.split('::').filter(Boolean).slice(-2).join('::') || name;
}
