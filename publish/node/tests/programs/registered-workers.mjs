// Starts workers with several options, with otelctx/register. Each activates a span of OpenTelemetry, and keeps its thread
// in it until standard input ends. Prints the trace of each.
import { createRequire } from 'node:module'
import { readSync } from 'node:fs'
import { Worker, isMainThread, parentPort, threadId } from 'node:worker_threads'

if (isMainThread) {
  const options = [undefined, { execArgv: [] }, { env: { A: '1' } }, { env: {}, execArgv: ['--no-warnings'] }]
  const flags = process.execArgv.filter((flag) => flag.includes('async-context-frame'))
  const all = options.map((options) => {
    if (options?.execArgv) options.execArgv.push(...flags)
    const worker = new Worker(new URL(import.meta.url), options)
    if (!(worker instanceof Worker)) throw new Error('another class')
    return new Promise((resolve, reject) => {
      worker.on('message', resolve)
      worker.on('error', reject)
    })
  })
  console.log(JSON.stringify(await Promise.all(all)))
  try {
    readSync(0, Buffer.alloc(1))
  } catch {
    // It has ended.
  }
  process.exit(0)
} else {
  const traceId = `${threadId}`.padStart(32, 'a')
  const ids = { traceId, spanId: 'b'.repeat(16), traceFlags: 1 }
  const key = Symbol.for('OpenTelemetry Context Key SPAN')
  const span = { spanContext: () => ids }
  const context = { getValue: (wanted) => (wanted === key ? span : undefined) }
  const manager = { with: (_, fn) => fn() }
  // As `@opentelemetry/api` registers a manager.
  const api = {}
  globalThis[Symbol.for('opentelemetry.js.api.1')] = api
  api.context = manager
  manager.with(context, () => {
    parentPort.postMessage(traceId)
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
  })
}
