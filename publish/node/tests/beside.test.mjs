// Another publisher that comes later.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { command, dump, flags, folder, run, start } from './common.mjs'

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

/** The attributes that the command shows of a context of this package, after these statements. */
async function shown(statements) {
  const program = `
    const otelctx = require(${JSON.stringify(folder)})
    const load = () => {
      try {
        process.dlopen({ exports: {} }, process.env.OTELCTX_OTHER)
      } catch {
        // It is no addon.
      }
    }
    const publish = () => {
      try {
        otelctx.publish()
      } catch {
        // The other one was first.
      }
    }
    const named = otelctx.makeNamedContext(['http.route'])
    ${statements}
    named.run(Buffer.alloc(16, 1), Buffer.alloc(8, 1), 1, { 'http.route': '/cart' }, () => {
      console.log('{}')
      require('node:fs').readSync(0, Buffer.alloc(1))
    })`
  const child = await start([...flags, '-e', program])
  const { threads } = dump(child.pid)
  await child.stop()
  return threads.find(({ tid }) => tid === child.pid).context.attributes
}

const withoutCommand = without || (command === undefined && 'no command')

test('its names are not given to the attributes of this package', { skip: withoutCommand }, async () => {
  // There is nothing that has the names.
  assert.deepEqual(await shown('load(); publish()'), { '#0': '/cart' })
  assert.deepEqual(await shown('publish(); load()'), { 'http.route': '/cart' })
})
