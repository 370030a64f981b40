// How the package is imported.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'

import { flags, folder, otelctx, run } from './common.mjs'

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
  for (const { Context, getContext } of [otelctx, second]) {
    const context = new Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
    assert.equal(context.run(getContext), context)
    // Readers follow one storage: that of both.
    assert.equal(context.run(otelctx.getContext), context)
    assert.equal(context.run(second.getContext), context)
  }
})

test('in a bundle, whose require loads nothing but its own modules, it finds its addon', () => {
  const source = `
    const { readFileSync } = require('node:fs')
    const { join } = require('node:path')
    const folder = process.env.OTELCTX_PACKAGE
    const modules = {}
    function bundled(name) {
      if (name.startsWith('node:')) return require(name)
      if (!name.startsWith('./')) throw new Error('No such built-in module: ' + name)
      if (modules[name] === undefined) {
        const module = (modules[name] = { exports: {} })
        const text = readFileSync(join(folder, 'lib', name + '.js'), 'utf8')
        const names = ['exports', 'require', 'module', '__dirname']
        new Function(...names, text)(module.exports, bundled, module, join(folder, 'bundle'))
      }
      return modules[name].exports
    }
    console.log(bundled('./index').unsupportedReason)`
  const result = run([...flags, '-e', source])
  assert.equal(result.stderr, '')
  assert.equal(result.stdout, 'undefined\n')
})
