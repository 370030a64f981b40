// What a reader sees from outside: the command `otelctx dump`.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { dump, flags, program, start } from './common.mjs'

const ids = {
  trace_id: '0af7651916cd43dd8448eb211c80319c',
  span_id: 'b7ad6b7169203331',
  trace_flags: 1,
  attributes: { 'http.route': '/cart' },
}
const expected = {
  run: ids,
  await: ids,
  churn: ids,
  append: {
    ...ids,
    trace_flags: 3,
    attributes: { 'http.route': '/cart', 'user.tier': 'gold'.repeat(50) },
  },
  invalid: null,
  clear: null,
  none: null,
}

/** Dumps a program while it waits; undefined if there is no command. */
async function dumpOf(t, args, options) {
  const child = await start(args, options)
  try {
    const found = dump(child.pid)
    if (found === undefined) {
      t.skip('the command otelctx is not built')
      return undefined
    }
    return { found, child }
  } finally {
    assert.equal(await child.stop(), 0)
  }
}

for (const [what, context] of Object.entries(expected)) {
  test(`a reader finds the context: ${what}`, async (t) => {
    const args = [...flags, '--expose-gc', program('hold.mjs'), what]
    const result = await dumpOf(t, args)
    if (result === undefined) return
    const { found, child } = result
    const main = found.threads.find((thread) => thread.tid === child.pid)
    assert.deepEqual(main.context, context)
    if (what === 'invalid') assert.equal(main.nodejs.state, 'invalid')
    for (const thread of found.threads) {
      if (thread !== main) assert.equal(thread.context, null)
    }
  })
}

test('a thread with dynamic storage publishes, too', async (t) => {
  // That it is dynamic by this is asserted in inspect/runtimes/nodejs/tests/contexts/main.rs, which sees the storage.
  const env = { GLIBC_TUNABLES: 'glibc.rtld.optional_static_tls=0' }
  const result = await dumpOf(t, [...flags, program('hold.mjs'), 'run'], { env })
  if (result === undefined) return
  const main = result.found.threads.find((thread) => thread.tid === result.child.pid)
  assert.deepEqual(main.context, ids)
})

test('the process context says what the process is', async (t) => {
  const env = { OTEL_SERVICE_NAME: 'shop', OTEL_RESOURCE_ATTRIBUTES: 'a=1,service.version=9' }
  const result = await dumpOf(t, [...flags, program('hold.mjs'), 'none'], { env })
  if (result === undefined) return
  const { resource, attributes } = result.found.process_context
  assert.equal(resource['service.name'], 'shop')
  assert.equal(resource.a, '1')
  // What the program says takes precedence.
  assert.equal(resource['service.version'], '1.2')
  assert.deepEqual(resource.ports, [80, 443])
  assert.equal(resource.debug, true)
  assert.equal(resource.ratio, 0.5)
  assert.equal(BigInt(resource.big), 2n ** 62n)
  assert.equal(resource['telemetry.sdk.language'], 'nodejs')
  assert.equal(resource['process.pid'], result.child.pid)
  assert.equal(resource['process.runtime.version'], process.versions.node)
  assert.equal(attributes['threadlocal.schema_version'], 'nodejs_v1_dev')
  assert.deepEqual(attributes['threadlocal.attribute_key_map'], ['http.route', 'user.tier'])
  // V8's layout, for readers of earlier addons: an object has one word more from Node.js 24 on.
  const names = Object.keys(attributes).filter((name) => name.startsWith('threadlocal.'))
  const layout = {
    'threadlocal.js_object_record_offset': process.versions.node.startsWith('22.') ? 24 : 32,
    'threadlocal.js_map_table_offset': 24,
    'threadlocal.ordered_hash_map_header_size': 16,
    'threadlocal.tagged_size': 8,
  }
  for (const [name, value] of Object.entries(layout)) assert.strictEqual(attributes[name], value, name)
  const others = ['threadlocal.attribute_key_map', 'threadlocal.schema_version']
  assert.deepEqual(names.sort(), [...Object.keys(layout), ...others].sort())
})
