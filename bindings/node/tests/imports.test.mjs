// How the package is imported.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'

import { folder, otelctx } from './common.mjs'

test('both kinds of modules share one package', async () => {
  const module = await import(pathToFileURL(join(folder, 'lib/index.mjs')))
  assert.deepEqual(Object.keys(module).sort(), Object.keys(otelctx).sort())
  for (const name of Object.keys(otelctx)) assert.equal(module[name], otelctx[name], name)
})

test('a second copy in one environment keeps the first one working', () => {
  const require = createRequire(import.meta.url)
  const paths = Object.keys(require.cache).filter((path) => path.startsWith(folder))
  assert.ok(paths.some((path) => path.endsWith('.node')))
  for (const path of paths) delete require.cache[path]
  const second = require(folder)
  assert.notEqual(second, otelctx)
  for (const { ThreadContext, getContext } of [otelctx, second]) {
    const context = new ThreadContext(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
    assert.equal(context.run(getContext), context)
    // Readers follow one storage: that of both.
    assert.equal(context.run(otelctx.getContext), context)
    assert.equal(context.run(second.getContext), context)
  }
})
