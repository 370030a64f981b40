// Measures `new` against npm's @datadog/pprof, `enter` and `run` against a bare AsyncLocalStorage, and OpenTelemetry's
// `with` against its context manager alone, in one process.
//
//     node --expose-gc bench/contexts.mjs PACKAGE [PPROF [MODULES]]
//
// PACKAGE and PPROF are the folders of the packages; MODULES has OpenTelemetry's in `node_modules`. Prints the median of 21 interleaved pairs: ours, the other's, in
// nanoseconds, and their ratio.
import { AsyncLocalStorage } from 'node:async_hooks'
import { createRequire } from 'node:module'
import { join, resolve } from 'node:path'

const require = createRequire(import.meta.url)
const [, , own = '..', pprof, modules] = process.argv
const otelctx = require(resolve(own))
const other = pprof && require(resolve(pprof, 'out/src/otel-thread-ctx.js'))

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
const context = new otelctx.ThreadContext(traceId, spanId, 1, attributes)
const nothing = () => 1

function measure(call, within) {
  globalThis.gc?.()
  const loop = () => {
    const start = process.hrtime.bigint()
    for (let count = 0; count < CALLS; count++) call()
    return Number(process.hrtime.bigint() - start) / CALLS
  }
  return within ? bare.run({}, () => context.run(loop)) : loop()
}

const median = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1]

function compare(name, ours, theirs, within) {
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
  console.log(`${name.padEnd(20)} ${one.toFixed(0).padStart(6)} ns ${two.toFixed(0).padStart(6)} ns  ${ratio.toFixed(3)}`)
}

if (other) {
  const ours = makers(otelctx.ThreadContext)
  const theirs = makers(other.ThreadContext)
  for (const name of Object.keys(ours)) compare(name, ours[name], theirs[name])
}
// Both enter within a run, so that what they enter ends with it.
compare('enter', () => context.enter(), () => bare.enterWith(value), true)
compare('run', () => context.run(nothing), () => bare.run(value, nothing))

// The last one: then contexts of the program's own keep OpenTelemetry's, too.
if (modules) {
  const npm = createRequire(join(resolve(modules), 'x.js'))
  const { ROOT_CONTEXT, context, trace } = npm('@opentelemetry/api')
  const { AsyncLocalStorageContextManager } = npm('@opentelemetry/context-async-hooks')
  const ids = { traceId: traceId.toString('hex'), spanId: spanId.toString('hex'), traceFlags: 1 }
  const active = trace.setSpan(ROOT_CONTEXT, { spanContext: () => ids })
  const alone = new AsyncLocalStorageContextManager()
  const published = new AsyncLocalStorageContextManager()
  require(join(resolve(own), 'lib/register.js'))
  context.setGlobalContextManager(published)
  const call = (manager) => () => manager.with(active, nothing)
  compare('context.with', call(published), call(alone))
}
