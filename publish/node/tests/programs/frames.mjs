// Starts asynchronous calls of each kind, which hold one context, and appends attributes in some of them. Each call writes its name and
// what was appended before, and then waits in this very call for a byte.
import { AsyncResource } from 'node:async_hooks'
import { EventEmitter } from 'node:events'
import { readFile, readSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Readable } from 'node:stream'
import { MessageChannel } from 'node:worker_threads'

const otelctx = createRequire(import.meta.url)(process.env.OTELCTX_PACKAGE)

const traceId = Buffer.from('0af7651916cd43dd8448eb211c80319c', 'hex')
const spanId = Buffer.from('b7ad6b7169203331', 'hex')
const named = otelctx.makeNamedContext(['http.route', 'user.tier', 'query', 'last'])
otelctx.publish()
const context = named.build(traceId, spanId, 1, { 'http.route': '/cart' })

const appended = []
function append(name, value) {
  named.append(context, { [name]: value })
  appended.push(name)
}

let open = 0
let finish
const finished = new Promise((resolve) => {
  finish = resolve
})

function hold(name) {
  console.log(JSON.stringify({ name, appended }))
  readSync(0, Buffer.alloc(1))
  if (--open === 0) finish()
}

/** A call of this kind, which holds. */
function call(name) {
  open++
  return () => hold(name)
}

/** Resolved by calls that have no context. */
const outside = {}
outside.promise = new Promise((resolve) => {
  outside.resolve = resolve
})

async function inner(done) {
  await outside.promise
  await null
  await new Promise((resolve) => setTimeout(resolve, 1))
  done()
}

async function* numbers() {
  yield 1
  await outside.promise
  yield 2
}

context.run(() => {
  const sync = call('sync')
  process.nextTick(call('tick'))
  queueMicrotask(call('microtask'))
  outside.promise.then(call('promise'))
  outside.promise.finally(call('finally'))
  const awaits = call('awaits')
  const twice = call('twice')
  ;(async () => {
    await inner(awaits)
    twice()
  })()
  const iterates = call('iterates')
  ;(async () => {
    for await (const number of numbers()) if (number === 2) iterates()
  })()
  setImmediate(call('immediate'))
  setTimeout(call('timeout'), 5)
  const interval = call('interval')
  const timer = setInterval(() => {
    clearInterval(timer)
    interval()
  }, 7)
  readFile(import.meta.filename, call('file'))
  const bound = AsyncResource.bind(call('bound'))
  const events = new EventEmitter().on('event', bound)
  outside.emit = () => events.emit('event')
  const { port1, port2 } = new MessageChannel()
  const message = call('message')
  port1.once('message', () => {
    port1.close()
    message()
  })
  outside.send = () => port2.postMessage(1)
  const read = call('stream')
  Readable.from(['x']).on('data', read)
  sync()
  append('user.tier', 'gold')
})
// None of these has the context; what they call has.
setTimeout(() => {
  // The record moves.
  context.run(() => append('query', 'q'.repeat(255)))
  outside.resolve()
  outside.send()
}, 20)
setTimeout(() => {
  append('last', 'yes')
  outside.emit()
  const none = call('none')
  otelctx.runWithoutContext(none)
}, 40)

await finished
// The loop is the one of the module, which has no context.
console.log(JSON.stringify({ name: 'end', appended }))
readSync(0, Buffer.alloc(1))
