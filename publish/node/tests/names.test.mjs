// The names of attributes, and what is published for them.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { decode, otelctx, spanId, traceId } from './common.mjs'

const { getProcessContextAttributes, makeNamedContext } = otelctx

test('names have positions', () => {
  const keys = ['http.route', 'http.request.method']
  const attributes = getProcessContextAttributes(keys)
  assert.deepEqual(attributes['threadlocal.attribute_key_map'], keys)
  assert.equal(attributes['threadlocal.schema_version'], 'nodejs_v1_dev')
  assert.equal(attributes['threadlocal.tagged_size'], 8)
  assert.equal(attributes['threadlocal.js_map_table_offset'], 24)
  assert.equal(attributes['threadlocal.ordered_hash_map_header_size'], 16)
  const offset = process.versions.node.startsWith('22.') ? 24 : 32
  assert.equal(attributes['threadlocal.js_object_record_offset'], offset)
  assert.equal(Object.keys(attributes).length, 6)
  assert.ok(Object.isFrozen(attributes))
  assert.ok(Object.isFrozen(attributes['threadlocal.attribute_key_map']))
  keys.push('late')
  assert.equal(attributes['threadlocal.attribute_key_map'].length, 2)
  keys.pop()

  const longer = [...keys, 'user.tier']
  const all = getProcessContextAttributes(longer)
  assert.deepEqual(all['threadlocal.attribute_key_map'], longer)
  for (const wrong of [keys, [], ['user.tier', ...keys], ['x', 'y', 'z'], [...longer, keys[0]]]) {
    assert.throws(() => getProcessContextAttributes(wrong), /Error/)
  }
  assert.deepEqual(getProcessContextAttributes(longer), all)
})

test('wrong names are refused', () => {
  const types = { name: 'TypeError' }
  for (const wrong of [undefined, null, 'a', {}, [1], [null], [''], ['a', 'a'], new Set(['a'])]) {
    assert.throws(() => getProcessContextAttributes(wrong), types)
    assert.throws(() => makeNamedContext(wrong), types)
  }
  const tooMany = Array.from({ length: 257 }, (_, index) => `key ${index}`)
  assert.throws(() => getProcessContextAttributes(tooMany), { name: 'RangeError' })
  assert.throws(() => makeNamedContext(tooMany), { name: 'RangeError' })
})

test('named attributes find their indexes, whatever their order', () => {
  const named = makeNamedContext(['tenant', 'user.tier', 'http.route'])
  const { processContextAttributes } = named
  assert.ok(Object.isFrozen(processContextAttributes))
  const keys = processContextAttributes['threadlocal.attribute_key_map']
  assert.deepEqual(keys, ['http.route', 'http.request.method', 'user.tier', 'tenant'])
  const values = { tenant: 'acme', 'http.route': '/cart', 'user.tier': null }
  const context = named.build(traceId, spanId, 1, values)
  const attributes = () => decode(context.debugBytes()).attributes
  assert.deepEqual(attributes(), [[0, '/cart'], [3, 'acme']])
  named.append(context, { 'user.tier': 'gold' })
  assert.deepEqual(attributes().at(-1), [2, 'gold'])
  assert.throws(() => named.build(traceId, spanId, 1, { unknown: 'x' }), { name: 'TypeError' })
  assert.throws(() => named.append(context, { toString: 'x' }), { name: 'TypeError' })
  assert.equal(named.build(traceId, spanId).debugBytes().length, 28)

  const result = named.run(traceId, spanId, 1, values, () => otelctx.getContext().debugBytes())
  assert.deepEqual(decode(result).attributes, [[0, '/cart'], [3, 'acme']])
  otelctx.runWithoutContext(() => {
    assert.equal(named.enter(traceId, spanId, 1, values), otelctx.getContext())
  })
})
