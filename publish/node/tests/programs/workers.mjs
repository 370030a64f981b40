// Starts workers, one after the other and side by side; each makes contexts, and ends. Prints how much memory the
// process has before and after, in bytes, and how they exited.
import { createRequire } from 'node:module'
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads'

const otelctx = createRequire(import.meta.url)(process.env.OTELCTX_PACKAGE)
const CONTEXTS = 3000

const named = otelctx.makeNamedContext(isMainThread ? ['a', 'b'] : ['b', 'c'])

function work(seed) {
  const kept = []
  for (let count = 0; count < CONTEXTS; count++) {
    const traceId = new Uint8Array(16).fill(seed + 1)
    const context = named.build(traceId, new Uint8Array(8).fill(1), 1, { b: 'x'.repeat(255) })
    named.append(context, { b: 'y'.repeat(255) })
    kept.push(context)
    context.run(() => {
      if (otelctx.getContext() !== context) throw new Error('another context')
    })
  }
  kept.at(-1).enter()
  return kept
}

function start(seed) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL(import.meta.url), { workerData: seed })
    worker.on('message', () => seed % 3 === 2 && worker.terminate())
    worker.on('error', reject)
    worker.on('exit', resolve)
  })
}

if (isMainThread) {
  const [, , count = '60'] = process.argv
  const own = work(200)
  const codes = []
  const round = async () => {
    for (let seed = 0; seed < Number(count); seed += 6) {
      codes.push(...(await Promise.all([0, 1, 2, 3, 4, 5].map((more) => start(seed + more)))))
    }
  }
  await round()
  const before = process.memoryUsage.rss()
  await round()
  const after = process.memoryUsage.rss()
  if (otelctx.getContext() !== own.at(-1)) throw new Error('another context')
  const last = Buffer.from(own[0].debugBytes()).toString('hex', 0, 16)
  console.log(JSON.stringify({ before, after, last, codes }))
} else {
  work(workerData)
  parentPort.postMessage('made')
  if (workerData % 3 === 1) process.exit(7)
  // It is terminated while it runs.
  if (workerData % 3 === 2) setInterval(() => work(workerData), 1)
}
