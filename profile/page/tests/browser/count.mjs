// Counts a recording's samples naively, and compares random selections of the page with that.

export const sum = samples => samples.reduce((total, { weight }) => total + weight, 0);

// Which stacks have a text; remembered, as tests search the same again and again.
function stacksWith(facts, text) {
  facts.found ??= {};
  const has = frame =>
    frame[0].toLowerCase().includes(text) || frame[1].toLowerCase().includes(text);
  return (facts.found[text] ??= facts.stacks.map(stack => text === '' || stack.some(has)));
}

// The samples of a selection, which has the page's fields, but a trace by its ID.
export function select(facts, selection) {
  const contains = stacksWith(facts, selection.text?.toLowerCase() ?? '');
  const { from = 0, to = Infinity, kinds, trace, thread, service, route } = selection;
  return facts.samples.filter(
    it =>
      (kinds >> it.kind) & 1 &&
      it.time >= from &&
      it.time < to &&
      (trace === undefined || it.trace === trace) &&
      (thread === undefined || it.thread === thread) &&
      (service === undefined || it.service === service) &&
      (route === undefined || it.route === route) &&
      contains[it.stack],
  );
}

// Sums by key of each sample: of one key or of several.
function sumsBy(samples, keysOf) {
  const sums = {};
  for (const sample of samples) {
    for (const key of [keysOf(sample)].flat()) sums[key] = (sums[key] ?? 0) + sample.weight;
  }
  return sums;
}

// What is shown of a selection: its total, and the totals of functions, of their own and with what
// they call; of routes, whatever route is selected; and of traces, whatever trace and kind.
function counted(facts, selection, plumbing) {
  const samples = select(facts, selection);
  const keyOf = ([name, file, kind, line]) =>
    plumbing || !kind ? `${name} ${file} ${line}` : `[${facts.plumbing[kind - 1]}]`;
  const framesOf = stack => facts.stacks[stack].filter(frame => plumbing || !frame[2]).map(keyOf);
  const ownOf = stack => facts.stacks[stack].slice(-1).map(keyOf);
  const traced = select(facts, { ...selection, kinds: 7, trace: undefined }).filter(it => it.trace);
  return {
    total: sum(samples),
    own: sumsBy(samples, ({ stack }) => ownOf(stack)),
    withCalled: sumsBy(samples, ({ stack }) => [...new Set([...framesOf(stack), ...ownOf(stack)])]),
    routes: sumsBy(
      select(facts, { ...selection, service: undefined, route: undefined }),
      it => `${it.service} ${it.route}`,
    ),
    traces: sumsBy(traced, it => `${it.trace} ${it.kind}`),
  };
}

// Selections as random as a reader's: each changes something of the last.
function* randomSelections(facts, count) {
  let state = 20_261_129;
  const random = limit => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
  const last = Math.max(...facts.samples.map(({ time }) => time));
  const traces = [...new Set(facts.samples.map(({ trace }) => trace).filter(Boolean))];
  const texts = ['cart', 'Token', '.rs', '.py:', 'shop/', 'query', 'zzz', 'e', '_Py', 'tcp'];
  const selection = { kinds: 1 };
  const view = { plumbing: false, by: 'route' };
  const set = (key, value) => (random(3) ? (selection[key] = value) : delete selection[key]);
  const changes = [
    () => set('route', random(facts.routes.length + 1)),
    () => set('service', random(facts.services.length)),
    () => set('trace', traces[random(traces.length)]),
    () => set('thread', random(facts.threads.length)),
    () => set('text', texts[random(texts.length)]),
    () => (selection.kinds = 1 + random(15)),
    () => (view.plumbing = random(4) === 0),
    () => (view.by = ['route', 'service', 'none'][random(3)]),
    () => {
      const [a, b] = [random(last + 2), random(last + 2)];
      if (random(3) && a !== b)
        Object.assign(selection, { from: Math.min(a, b), to: Math.max(a, b) });
      else for (const key of ['from', 'to']) delete selection[key];
    },
    // A move while dragging.
    () => selection.to !== undefined && (selection.to += 1 + random(2000)),
    () => {
      for (const key of Object.keys(selection))
        if (!['kinds', 'from', 'to'].includes(key) && random(2)) delete selection[key];
    },
  ];
  for (let i = 0; i < count; i++) {
    changes[random(changes.length)]();
    yield { selection: { ...selection }, view: { ...view } };
  }
}

// Returns descriptions of selections of which the page shows something else than what is counted.
export async function compareRandomSelections(page, facts, count) {
  const different = [];
  const batch = [];
  const compare = async () => {
    const found = await page.evaluate(shownOfSelections, batch);
    found.forEach((shown, i) => {
      const expected = counted(facts, batch[i].selection, batch[i].view.plumbing);
      for (const [name, values] of Object.entries(expected)) {
        if (sorted(values) === sorted(shown[name])) continue;
        different.push(
          `${JSON.stringify(batch[i])}: ${name} ${sorted(shown[name])}, not ${sorted(values)}`.slice(
            0,
            500,
          ),
        );
      }
    });
    batch.length = 0;
  };
  for (const wanted of randomSelections(facts, count)) {
    batch.push(wanted);
    if (batch.length === 100) await compare();
    if (different.length >= 5) break;
  }
  await compare();
  return different.slice(0, 5);
}

const sorted = values =>
  JSON.stringify(
    typeof values === 'number'
      ? values
      : Object.entries(values)
          .filter(([, it]) => it !== 0)
          .sort(),
  );

// Runs in the page: chooses each selection, and returns all that it computes of it.
function shownOfSelections(batch) {
  const { page } = globalThis;
  const { model } = page;
  const { samples, facts, first } = model;
  const hexadecimal = bytes =>
    Array.from(bytes, byte => (byte + 256).toString(16).slice(1)).join('');
  const traces = Array.from({ length: samples.traceCount }, (_, i) =>
    hexadecimal(samples.traceBytes.subarray(i * 16, i * 16 + 16)),
  );
  const keyOf = label =>
    label < first.plumbing
      ? `${model.names[label]} ${model.files[model.fileOf[label]]} ${model.lineOf[label]}`
      : `[${facts.plumbing[label - first.plumbing]}]`;
  const byLabel = values => {
    const sums = {};
    for (let label = 0; label < first.service; label++)
      if (values[label]) sums[keyOf(label)] = values[label];
    return sums;
  };
  const absent = ['route', 'service', 'trace', 'thread', 'text', 'from', 'to'].map(key => [
    key,
    undefined,
  ]);
  return batch.map(({ selection, view }) => {
    const trace = selection.trace === undefined ? undefined : traces.indexOf(selection.trace) + 1;
    Object.assign(page, view);
    page.choose({ ...Object.fromEntries(absent), ...selection, trace });
    const { pairs, totals } = page.addUpRoutes(model, page.weights);
    const { ofKind } = page.addUpTraces(model, page.weights.allowed, page.selection);
    const ofTraces = traces.flatMap((id, i) =>
      ofKind.map((values, kind) => [`${id} ${kind}`, values[i + 1]]),
    );
    return {
      total: page.sums.total,
      own: byLabel(page.sums.labelSelf),
      withCalled: byLabel(page.sums.labelTotal),
      routes: Object.fromEntries(
        pairs.map(({ service, route }, i) => [`${service} ${route}`, totals[i]]),
      ),
      traces: Object.fromEntries(ofTraces),
    };
  });
}
