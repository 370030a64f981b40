// A small web shop of express, instrumented by OpenTelemetry: docs/slow-node-service.md.
'use strict'
const { registerInstrumentations } = require('@opentelemetry/instrumentation')
const { ExpressInstrumentation } = require('@opentelemetry/instrumentation-express')
const { HttpInstrumentation } = require('@opentelemetry/instrumentation-http')
const { NodeTracerProvider } = require('@opentelemetry/sdk-trace-node')

new NodeTracerProvider().register()
registerInstrumentations({ instrumentations: [new HttpInstrumentation(), new ExpressInstrumentation()] })

const { pbkdf2 } = require('node:crypto')
const express = require('express')

const orders = Array.from({ length: 3000 }, (_, id) => ({
  id,
  items: Array.from({ length: 8 }, (_, item) => ({ price: (id * 7919 + item * 104729) % 5000, count: 1 + (item % 3) })),
}))

function total(order) {
  let sum = 0
  for (const item of order.items) sum += item.price * item.count
  return sum
}

function byTotal(one, other) {
  return total(other) - total(one)
}

function largestOrders() {
  const sorted = [...orders].sort(byTotal)
  return sorted.slice(0, 10).map((order) => `${order.id}: ${total(order)}`)
}

async function cart(request, response) {
  await new Promise((resolve) => setTimeout(resolve, 1))
  response.json({ items: 3 })
}

function report(request, response) {
  response.send(largestOrders().join('\n'))
}

function login(request, response) {
  pbkdf2('secret', 'salt', 5000, 32, 'sha256', (error, key) => response.send(key.toString('hex')))
}

// Of words and what is between them. Where the end does not match, it tries every way to divide the words: twice as many with each letter.
const WORDS = /^(\w+\s?)*$/

function search(request, response) {
  response.json({ items: WORDS.test(request.query.q) ? 3 : 0 })
}

const app = express()
app.get('/cart', cart)
app.get('/report', report)
app.get('/login', login)
app.get('/search', search)
app.listen(Number(process.env.PORT ?? 8080))
