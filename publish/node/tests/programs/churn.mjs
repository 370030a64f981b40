// Four threads at a time execute JavaScript in a context that says which thread it is, and end, each in one of three ways; others take
// their place, until the standard input ends. Exits with 0 if each ended as it should, and at least 20 did after the first line.
import { readlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads'

const otelctx = createRequire(import.meta.url)(process.env.OTELCTX_PACKAGE)
const named = otelctx.makeNamedContext(['thread'])

function own() {
  const tid = Number(readlinkSync('/proc/thread-self').split('/').pop())
  const traceId = Buffer.alloc(16, 0xc0)
  traceId.writeUInt32BE(tid, 12)
  const spanId = Buffer.alloc(8, 0xd0)
  spanId.writeUInt32BE(tid, 4)
  return named.build(traceId, spanId, 1, { thread: String(tid) })
}

function spin(milliseconds) {
  const end = performance.now() + milliseconds
  let garbage = []
  while (performance.now() < end) {
    garbage.push(own())
    if (garbage.length > 100) garbage = []
  }
}

if (isMainThread) {
  otelctx.publish()
  const ENDS = [0, 7, 1]
  let started = 0
  let ended = 0
  let isEnding = false
  let isWrong = false
  const start = () => {
    const number = started++
    const worker = new Worker(new URL(import.meta.url), { workerData: number })
    worker.on('message', () => number % 3 === 2 && worker.terminate())
    worker.on('error', () => {
      isWrong = true
    })
    worker.on('exit', (code) => {
      if (code !== ENDS[number % 3]) isWrong = true
      ended++
      if (!isEnding) start()
    })
  }
  for (let count = 0; count < 4; count++) start()
  console.log(JSON.stringify({}))
  process.stdin.resume().on('end', () => {
    isEnding = true
  })
  process.on('exit', () => {
    if (isWrong || ended < 20 || ended !== started) process.exitCode = 1
  })
} else {
  const context = own()
  await context.run(async () => {
    spin(10)
    await null
    spin(10)
  })
  context.enter()
  parentPort.postMessage('made')
  if (workerData % 3 === 1) process.exit(7)
  // It is terminated while it runs.
  if (workerData % 3 === 2) for (;;) spin(1)
}
