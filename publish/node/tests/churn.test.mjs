// Reads a process whose threads come and go.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { command, dump, flags, program, start } from './common.mjs'

const DUMPS = 25

test('dumps while threads start and end', { timeout: 240_000 }, async (t) => {
  if (command === undefined) return t.skip('the command otelctx is not built')
  const child = await start([...flags, program('churn.mjs')])
  const seen = new Set()
  let how
  try {
    for (let count = 0; count < DUMPS || seen.size < 10; count++) {
      for (const { tid, context } of dump(child.pid).threads) {
        if (context === null) continue
        const number = tid.toString(16).padStart(8, '0')
        assert.deepEqual(context, {
          trace_id: 'c0'.repeat(12) + number,
          span_id: 'd0'.repeat(4) + number,
          trace_flags: 1,
          attributes: { thread: String(tid) },
        })
        seen.add(tid)
      }
      // Threads also come and go in between.
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
  } finally {
    how = await child.stop()
  }
  t.diagnostic(`${seen.size} threads in a context`)
  assert.equal(how, 0)
})
