// How long records live.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import { flags, program, run } from './common.mjs'

test('the garbage collector frees records', () => {
  // Each has 640 bytes: without it, these are 1.3 GB.
  const source = `
    const { Context } = require(process.env.OTELCTX_PACKAGE)
    const ids = [new Uint8Array(16).fill(1), new Uint8Array(8).fill(1)]
    for (let count = 0; count < 2_000_000; count++) {
      const context = new Context(...ids, 1, ['x'.repeat(255)])
      context.append(['x'.repeat(255)])
    }
    console.log(process.memoryUsage.rss())`
  const result = run([...flags, '-e', source])
  assert.equal(result.stderr, '')
  assert.equal(result.status, 0)
  assert.ok(Number(result.stdout) < 400e6, result.stdout)
})

test('a context outlives its collections', () => {
  const source = `
    const { Context, getContext } = require(process.env.OTELCTX_PACKAGE)
    const context = new Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1), 1, ['kept'])
    context.run(() => {
      const before = Buffer.from(getContext().debugBytes()).toString('hex')
      for (let count = 0; count < 20; count++) {
        let garbage = []
        for (let size = 0; size < 20_000; size++) {
          garbage.push(new Context(new Uint8Array(16).fill(2), new Uint8Array(8).fill(2)))
        }
        garbage = undefined
        gc({ type: count % 2 ? 'minor' : 'major' })
        if (Buffer.from(getContext().debugBytes()).toString('hex') !== before) throw new Error('changed')
      }
    })
    console.log('done')`
  const options = ['--expose-gc', '--compact-on-every-full-gc', '--stress-compaction']
  const result = run([...flags, ...options, '-e', source])
  assert.equal(result.stdout, 'done\n', result.stderr)
  assert.equal(result.status, 0)
})

test('workers end cleanly, and leak nothing', () => {
  const result = run([...flags, program('workers.mjs'), '60'])
  assert.equal(result.stderr, '')
  assert.equal(result.status, 0)
  const { before, after, last, codes } = JSON.parse(result.stdout)
  // The records of a third of 60 workers, 3,000 of 640 bytes each, would be 38 MB: all that end in one way.
  assert.ok(after - before < 20e6, `${before} ${after}`)
  const ends = [0, 7, 1]
  assert.deepEqual(codes, Array.from({ length: 120 }, (_, index) => ends[index % 3]))
  assert.equal(last, 'c9'.repeat(16))
})

test('a process ends while contexts are attached', () => {
  for (const end of ['process.exit(3)', 'throw new Error(1)', 'process.kill(process.pid)', '0']) {
    const source = `
      const { Context } = require(process.env.OTELCTX_PACKAGE)
      const context = new Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
      process.on('exit', () => context.debugBytes())
      context.enter()
      ${end}`
    const result = run([...flags, '-e', source])
    const expected = { 'process.exit(3)': 3, 'throw new Error(1)': 1, 0: 0 }[end] ?? 'SIGTERM'
    assert.equal(result.signal ?? result.status, expected, result.stderr)
  }
})
