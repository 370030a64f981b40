// What is appended to a context, in each asynchronous call that holds it.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { command, dump, flags, program, start } from './common.mjs'

const VALUES = { 'user.tier': 'gold', query: 'q'.repeat(255), last: 'yes' }
const KINDS = [
  'awaits',
  'bound',
  'file',
  'finally',
  'immediate',
  'interval',
  'iterates',
  'message',
  'microtask',
  'none',
  'promise',
  'stream',
  'sync',
  'tick',
  'timeout',
  'twice',
]

test('an append is seen in each asynchronous call that holds the context', async (t) => {
  if (command === undefined) return t.skip('the command otelctx is not built')
  const child = await start([...flags, program('frames.mjs')])
  const seen = new Map()
  try {
    for (let line = child.ready; line.name !== 'end'; line = await child.next()) {
      const { name, appended } = line
      const main = dump(child.pid).threads.find((thread) => thread.tid === child.pid)
      const attributes = { 'http.route': '/cart' }
      for (const key of appended) attributes[key] = VALUES[key]
      const expected = {
        trace_id: '0af7651916cd43dd8448eb211c80319c',
        span_id: 'b7ad6b7169203331',
        trace_flags: 1,
        attributes,
      }
      assert.deepEqual(main.context, name === 'none' ? null : expected, name)
      seen.set(name, appended.length)
    }
  } finally {
    assert.equal(await child.stop(), 0)
  }
  assert.deepEqual([...seen.keys()].sort(), KINDS)
  // One before the first append, one after all, and some after each.
  assert.equal(seen.get('sync'), 0)
  assert.equal(seen.get('bound'), 3)
  assert.deepEqual([...new Set(seen.values())].sort(), [0, 1, 2, 3])
})
