// Measures `new` against npm's @datadog/pprof, `enter` and `run` against a bare AsyncLocalStorage, and OpenTelemetry's
// `with` against its context manager alone, in one process.
//
//     node --expose-gc bench/contexts.mjs PACKAGE [PPROF [MODULES]]
//
// PACKAGE and PPROF are the folders of the packages; MODULES has OpenTelemetry's in `node_modules`. Prints the median of 21 interleaved pairs:
// ours, the other's, in nanoseconds, and their ratio. Exits with 1 if a ratio is above its bound.
import { AsyncLocalStorage } from 'node:async_hooks'
import { createRequire } from 'node:module'
import { join, resolve } from 'node:path'

const require = createRequire(import.meta.url)
const [, , own = '..', pprof, modules] = process.argv
const otelctx = require(resolve(own))
const other = pprof && require(resolve(pprof, 'out/src/otel-thread-ctx.js'))

/** Upper bounds on ratios. */
const BOUNDS = { 'new, 3 attributes': 0.9, enter: 1.05, run: 1.05, 'context.with': 1.3 }
const PAIRS = 21
const CALLS = 200_000

const traceId = Buffer.from('0af7651916cd43dd8448eb211c80319c', 'hex')
const spanId = Buffer.from('b7ad6b7169203331', 'hex')
const attributes = ['/cart/:id', 'GET', 'gold']

const makers = (Context) => ({
  'new': () => new Context(traceId, spanId, 1),
  'new, 3 attributes': () => new Context(traceId, spanId, 1, attributes),
})

const bare = new AsyncLocalStorage()
const value = {}
const context = new otelctx.Context(traceId, spanId, 1, attributes)
const nothing = () => 1

function measure(call, within) {
  globalThis.gc?.()
  return within(() => {
    const start = process.hrtime.bigint()
    for (let count = 0; count < CALLS; count++) call()
    return Number(process.hrtime.bigint() - start) / CALLS
  })
}

const outside = (loop) => loop()
/** What is entered ends with it. */
const withinRuns = (loop) => bare.run({}, () => context.run(loop))

const median = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1]

function compare(name, ours, theirs, within = outside) {
  const results = { ours: [], theirs: [], ratio: [] }
  for (let pair = -2; pair < PAIRS; pair++) {
    // Who is first alternates.
    let one
    let two
    if (pair % 2) {
      one = measure(ours, within)
      two = measure(theirs, within)
    } else {
      two = measure(theirs, within)
      one = measure(ours, within)
    }
    if (pair < 0) continue
    results.ours.push(one)
    results.theirs.push(two)
    results.ratio.push(one / two)
  }
  const [one, two, ratio] = ['ours', 'theirs', 'ratio'].map((key) => median(results[key]))
  const bound = BOUNDS[name]
  const holds = bound === undefined ? '' : `≤ ${bound} ${ratio <= bound ? 'holds' : 'MISSED'}`
  if (bound !== undefined && !(ratio <= bound)) process.exitCode = 1
  const times = [one, two].map((time) => `${time.toFixed(0).padStart(6)} ns`).join(' ')
  console.log(`${name.padEnd(36)} ${times}  ${ratio.toFixed(3)}  ${holds}`.trimEnd())
}

if (other) {
  const ours = makers(otelctx.Context)
  const theirs = makers(other.ThreadContext)
  for (const name of Object.keys(ours)) compare(name, ours[name], theirs[name])
}
const enter = [() => context.enter(), () => bare.enterWith(value)]
const run = [() => context.run(nothing), () => bare.run(value, nothing)]
compare('enter', ...enter, withinRuns)
compare('run', ...run)

// The last ones: from then on, contexts of the program's own keep OpenTelemetry's, too.
if (modules) {
  const npm = createRequire(join(resolve(modules), 'x.js'))
  const { ROOT_CONTEXT, context: api, trace } = npm('@opentelemetry/api')
  const { AsyncLocalStorageContextManager } = npm('@opentelemetry/context-async-hooks')
  const ids = { traceId: traceId.toString('hex'), spanId: spanId.toString('hex'), traceFlags: 1 }
  const active = trace.setSpan(ROOT_CONTEXT, { spanContext: () => ids })
  const alone = new AsyncLocalStorageContextManager()
  const published = new AsyncLocalStorageContextManager()
  require(join(resolve(own), 'lib/register.js'))
  api.setGlobalContextManager(published)
  const call = (manager) => () => manager.with(active, nothing)
  compare('context.with', call(published), call(alone))
  // A context that was not active before takes a record. The span's own context is part of both sides.
  const withNewSpan = (manager) => () => manager.with(trace.setSpan(ROOT_CONTEXT, { spanContext: () => ids }), nothing)
  compare('context.with, a new span each time', withNewSpan(published), withNewSpan(alone))
  const { RPCType, setRPCMetadata } = npm('@opentelemetry/core')
  const routed = setRPCMetadata(active, { type: RPCType.HTTP, route: attributes[0], span: undefined })
  const withRoute = (manager) => () => manager.with(routed, nothing)
  compare('context.with, with a route', withRoute(published), withRoute(alone))
  compare('enter, with register, no span', ...enter, withinRuns)
  compare('run, with register, no span', ...run)
  const withinSpan = (loop) => published.with(active, () => bare.run({}, loop))
  compare('enter, with register, within a span', ...enter, withinSpan)
  compare('run, with register, within a span', ...run, withinSpan)
}
