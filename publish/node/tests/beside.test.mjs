// Another publisher that comes later.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { flags, folder, run } from './common.mjs'

const { OTELCTX_OTHER } = process.env
const without = OTELCTX_OTHER === undefined && 'no C compiler'

/** Runs a program that has published, and returns what it prints, as JSON. */
function output(source) {
  const program = `
    const otelctx = require(${JSON.stringify(folder)})
    const warnings = []
    process.on('warning', ({ code, message }) => warnings.push([code, message.split(':')[0]]))
    const load = () => {
      try {
        process.dlopen({ exports: {} }, process.env.OTELCTX_OTHER)
      } catch {
        // It is no addon.
      }
    }
    const indexes = (named, attributes) => {
      const bytes = Buffer.from(named.build(Buffer.alloc(16, 1), Buffer.alloc(8, 1), 1, attributes).debugBytes())
      return bytes[28]
    }
    const first = otelctx.makeNamedContext(['http.route'])
    otelctx.publish()
    ${source}`
  const { stdout, stderr, status } = run([...flags, '-e', program])
  assert.equal(status, 0, stderr)
  return JSON.parse(stdout)
}

const WARNING = ['OTELCTX', 'another publisher in this process, such as a tracer, has published a second process context']

test('it is warned of once, and new names avoid its indexes', { skip: without }, () => {
  const printed = output(`
    load()
    const second = otelctx.makeNamedContext(['tenant', 'http.route'])
    const third = otelctx.makeNamedContext(['later'])
    const found = [
      indexes(first, { 'http.route': '/' }),
      indexes(second, { tenant: 'a' }),
      indexes(second, { 'http.route': '/' }),
      indexes(third, { later: 'b' }),
    ]
    const keys = third.processContextAttributes['threadlocal.attribute_key_map']
    setImmediate(() => console.log(JSON.stringify({ warnings, found, keys })))`)
  assert.deepEqual(printed.warnings, [WARNING])
  assert.deepEqual(printed.found, [0, 3, 0, 4])
  assert.deepEqual(printed.keys, ['http.route', '#1', '#2', 'tenant', 'later'])
})

test('it is warned of without new names', { skip: without }, () => {
  const printed = output(`
    load()
    const timer = setInterval(() => {}, 1000)
    process.on('warning', () => {
      clearInterval(timer)
      setImmediate(() => console.log(JSON.stringify(warnings)))
    })`)
  assert.deepEqual(printed, [WARNING])
})

test('without it there is no warning', () => {
  const printed = output(`
    otelctx.makeNamedContext(['tenant'])
    setImmediate(() => console.log(JSON.stringify(warnings)))`)
  assert.deepEqual(printed, [])
})
