// Starts workers with several options. Each says whether otelctx/register was loaded in it.
import { Worker, isMainThread, parentPort } from 'node:worker_threads'

const isRegistered = () => {
  const api = Symbol.for('opentelemetry.js.api.1')
  return Object.getOwnPropertyDescriptor(globalThis, api) !== undefined
}

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
} else {
  parentPort.postMessage(isRegistered())
}
