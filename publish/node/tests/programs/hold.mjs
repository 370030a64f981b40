// Attaches a context, and keeps the thread in it until standard input ends. The first argument is what to do.
import { readSync } from 'node:fs'
import { createRequire } from 'node:module'

const otelctx = createRequire(import.meta.url)(process.env.OTELCTX_PACKAGE)

const traceId = Buffer.from('0af7651916cd43dd8448eb211c80319c', 'hex')
const spanId = Buffer.from('b7ad6b7169203331', 'hex')
const named = otelctx.makeNamedContext(['http.route', 'user.tier'])
otelctx.publish({ 'service.version': '1.2', ports: [80, 443], debug: true, ratio: 0.5, big: 2n ** 62n })
const context = named.build(traceId, spanId, 1, { 'http.route': '/cart' })

/** Prints a line, and waits in this very call. */
function hold() {
  const bytes = otelctx.getContext()?.debugBytes()
  const record = bytes && Buffer.from(bytes).toString('hex')
  console.log(JSON.stringify({ record, runtime: process.versions.node }))
  try {
    readSync(0, Buffer.alloc(1))
  } catch {
    // It has ended.
  }
}

switch (process.argv[2]) {
  case 'run':
    context.run(hold)
    break
  case 'append':
    context.run(() => {
      // The record moves.
      named.append(context, { 'user.tier': 'gold'.repeat(50) })
      context.setTraceFlags(3)
      hold()
    })
    break
  case 'await':
    await context.run(async () => {
      await new Promise((resolve) => setTimeout(resolve, 5))
      hold()
    })
    break
  case 'churn':
    context.run(() => {
      let kept = []
      for (let count = 0; count < 300_000; count++) {
        kept.push(named.build(traceId, spanId, 0, { 'http.route': 'other' }))
        if (kept.length > 1000) kept = []
      }
      globalThis.gc?.()
      hold()
    })
    break
  case 'invalid':
    context.invalidate()
    context.run(hold)
    break
  case 'clear':
    context.enter()
    otelctx.clearContext()
    hold()
    break
  case 'none':
    hold()
    break
}
