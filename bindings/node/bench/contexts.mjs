// Measures `new`, `enter` and `run` against npm's @datadog/pprof and a bare AsyncLocalStorage, in one process.
//
//     node --expose-gc bench/contexts.mjs PACKAGE [PPROF]
//
// PACKAGE and PPROF are the folders of the packages. Prints the median of 21 interleaved pairs: ours, the other's, in
// nanoseconds, and their ratio.
import { AsyncLocalStorage } from 'node:async_hooks'
import { createRequire } from 'node:module'
import { resolve } from 'node:path'

const require = createRequire(import.meta.url)
const [, , own = '..', pprof] = process.argv
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

const pairs = []
if (other) {
  const ours = makers(otelctx.ThreadContext)
  const theirs = makers(other.ThreadContext)
  for (const name of Object.keys(ours)) pairs.push([name, ours[name], theirs[name]])
}
// Both enter within a run, so that what they enter ends with it.
pairs.push(['enter', () => context.enter(), () => bare.enterWith(value), true])
pairs.push(['run', () => context.run(nothing), () => bare.run(value, nothing)])

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

for (const [name, ours, theirs, within] of pairs) {
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
