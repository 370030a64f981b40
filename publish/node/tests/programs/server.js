'use strict'
// A server with OpenTelemetry's instrumentation, which sends itself requests. Each handler checks that its request is
// published. The last one waits until standard input ends. The first argument is a file of npm's packages; with a second one, the
// program registers no instrumentation itself.
const { readSync } = require('node:fs')
const { createRequire } = require('node:module')
const { Worker } = require('node:worker_threads')

const npm = createRequire(process.argv[2])
const otelctx = require(process.env.OTELCTX_PACKAGE)
const { trace } = npm('@opentelemetry/api')

function register() {
  const { registerInstrumentations } = npm('@opentelemetry/instrumentation')
  const { NodeTracerProvider } = npm('@opentelemetry/sdk-trace-node')
  const { defaultResource, resourceFromAttributes } = npm('@opentelemetry/resources')
  const { HttpInstrumentation } = npm('@opentelemetry/instrumentation-http')
  const { ExpressInstrumentation } = npm('@opentelemetry/instrumentation-express')

  // Its name is made up: the environment knows better.
  const own = resourceFromAttributes({ shop: 'open' })
  const resource = defaultResource().merge(own)
  new NodeTracerProvider({ resource }).register()
  registerInstrumentations({ instrumentations: [new HttpInstrumentation(), new ExpressInstrumentation()] })
}
if (process.argv[3] === undefined) register()

const http = require('node:http')
const express = npm('express')

let handlers = 0
const wrong = []

function published() {
  const buffer = Buffer.from(otelctx.getContext()?.debugBytes() ?? [])
  const attributes = buffer.subarray(28)
  return {
    trace_id: buffer.toString('hex', 0, 16),
    span_id: buffer.toString('hex', 16, 24),
    trace_flags: buffer[25],
    attributes: attributes.length === 0 ? {} : { 'http.route': attributes.toString('utf8', 2) },
  }
}

function check(route) {
  handlers++
  const span = trace.getActiveSpan().spanContext()
  const context = published()
  const isRight =
    context.trace_id === span.traceId &&
    context.span_id === span.spanId &&
    context.attributes['http.route'] === route
  if (!isRight) wrong.push([context, span, route])
  return context
}

/** Waits in this very call until standard input ends, which may be non-blocking. */
function hold() {
  for (;;) {
    try {
      readSync(0, Buffer.alloc(1))
      return
    } catch (error) {
      if (error.code !== 'EAGAIN') return
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10)
    }
  }
}

const app = express()
app.get('/cart/:id', async (request, response) => {
  check('/cart/:id')
  await new Promise((resolve) => setTimeout(resolve, 1))
  check('/cart/:id')
  response.end('cart')
})
app.get('/hold', (request, response) => {
  const held = check('/hold')
  console.log(JSON.stringify({ handlers: handlers - 1, wrong: wrong.length, first: wrong[0], held }))
  hold()
  process.exit(0)
})

const server = app.listen(0, async () => {
  const get = (path) =>
    new Promise((resolve, reject) => {
      const options = { port: server.address().port, path, agent: false }
      const request = http.get(options, (response) => response.resume().on('end', resolve))
      request.on('error', reject)
    })
  await Promise.all(Array.from({ length: 20 }, (_, id) => get(`/cart/${id}`)))
  // A worker publishes its threads, and leaves the process to the main thread.
  await new Promise((resolve) => new Worker('', { eval: true }).on('exit', resolve))
  await get('/hold')
})
