// Where contexts cannot be published.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'

import { folder, program, run } from './common.mjs'

function check(result, reason) {
  assert.equal(result.stderr, '')
  assert.equal(result.status, 0)
  assert.match(JSON.parse(result.stdout).reason, reason)
}

test('without AsyncContextFrame, attaching throws the reason', (t) => {
  const [major] = process.versions.node.split('.')
  const without = { 22: [], 24: ['--no-async-context-frame'] }[major]
  if (without === undefined) return t.skip('it is always on')
  check(run([...without, program('refused.js')]), /AsyncContextFrame/)
})

test('the flag counts, wherever it is', (t) => {
  if (!process.versions.node.startsWith('22.')) return t.skip('it is not needed')
  const env = { NODE_OPTIONS: '--experimental-async-context-frame' }
  const result = run(['-p', 'require(process.env.OTELCTX_PACKAGE).unsupportedReason'], { env })
  assert.equal(result.stdout, 'undefined\n')
})

test('other runtimes and builds are refused before the addon is loaded', () => {
  for (const [change, reason] of [
    ['Object.defineProperty(process.versions, "electron", { value: "1" })', /electron/],
    ['Object.defineProperty(process.versions, "bun", { value: "1" })', /bun/],
    ['config.v8_enable_pointer_compression = 1', /pointer compression/],
    ['config.v8_enable_sandbox = 1', /sandbox/],
    ['Object.defineProperty(process, "arch", { value: "riscv64" })', /riscv64/],
  ]) {
    check(run([program('refused.js'), change]), reason)
  }
})

test('the reason is that of the addon for the C library that Node.js has', () => {
  const copy = mkdtempSync(join(tmpdir(), 'otelctx-'))
  try {
    cpSync(folder, copy, { recursive: true })
    const prebuilds = join(copy, 'prebuilds')
    rmSync(prebuilds, { recursive: true })
    for (const libc of ['gnu', 'musl']) {
      const addons = join(prebuilds, `linux-${process.arch}-${libc}`)
      mkdirSync(addons, { recursive: true })
      writeFileSync(join(addons, 'otelctx.node'), 'no addon')
    }
    const linked = join(copy, 'linked')
    writeFileSync(linked, 'ELF /lib/ld-musl-x86_64.so.1')
    const change = `Object.defineProperty(process, 'execPath', { value: ${JSON.stringify(linked)} })`
    const env = { OTELCTX_PACKAGE: copy }
    check(run([program('refused.js'), change], { env }), /-musl\/otelctx.node/)
    check(run([program('refused.js')], { env }), /-gnu\/otelctx.node/)
  } finally {
    rmSync(copy, { recursive: true })
  }
})

test('an old Node.js is refused', (t) => {
  const node = process.env.OTELCTX_OLD_NODE
  if (node === undefined) return t.skip('there is none')
  check(spawnSync(node, [program('refused.js')], { encoding: 'utf8' }), /does not export|AsyncContextFrame/)
})

test('elsewhere, objects do nothing', () => {
  const source = `
    Object.defineProperty(process, 'platform', { value: 'darwin' })
    const assert = require('node:assert')
    const otelctx = require(process.env.OTELCTX_PACKAGE)
    const context = new otelctx.ThreadContext(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
    assert.strictEqual(context.run(() => 1), 1)
    context.enter()
    otelctx.setContext(context)
    assert.strictEqual(otelctx.getContext(), undefined)
    otelctx.clearContext()
    assert.strictEqual(otelctx.runWithContext(context, () => 2), 2)
    assert.strictEqual(otelctx.runWithoutContext(() => 3), 3)
    context.appendAttributes(['a'])
    context.invalidate()
    context.setTraceFlags(1)
    assert.strictEqual(context.debugBytes()[25], 1)
    const none = new otelctx.ThreadContext(new Uint8Array(16), new Uint8Array(8))
    none.setTraceFlags(1)
    assert.strictEqual(none.debugBytes()[25], 0)
    assert.strictEqual(context.debugBytes().length, 31)
    assert.ok(otelctx.getProcessContextAttributes(['a']))
    assert.ok(otelctx.makeNamedContext(['a']).processContextAttributes)
    otelctx.publish({ a: 1 })
    assert.throws(() => otelctx.ThreadContext.prototype.run.call({}, () => 1), TypeError)
    console.log('done')`
  const result = run(['-e', source])
  assert.equal(result.stdout, 'done\n', result.stderr)
})
