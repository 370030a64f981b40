'use strict'
// Uses the package where contexts cannot be published, after a change to the process. With OTELCTX_HOLD, it then waits until its
// standard input ends.
const assert = require('node:assert')
const { readSync } = require('node:fs')

const config = { ...process.config.variables }
Object.defineProperty(process, 'config', { value: { variables: config } })
// biome-ignore lint/security/noGlobalEval: the test's own
if (process.argv[2]) eval(process.argv[2])
const otelctx = require(process.env.OTELCTX_PACKAGE)

const { unsupportedReason } = otelctx
const refused = (error) => error instanceof Error && error.message.includes(unsupportedReason)
const ids = [new Uint8Array(16).fill(1), new Uint8Array(8).fill(1)]

const context = new otelctx.Context(...ids, 1, ['é'.repeat(200)])
assert.strictEqual(context.isTruncated(), true)
context.append(['a'])
context.setTraceFlags(3)
context.invalidate()
assert.strictEqual(context.debugBytes().length, 28 + 2 + 254 + 3)
assert.throws(() => new otelctx.Context(1, 2), TypeError)
assert.throws(() => context.enter(), refused)
assert.throws(() => context.run(() => 1), refused)
assert.throws(() => otelctx.setContext(context), refused)
assert.throws(() => otelctx.runWithContext(context, () => 1), refused)
assert.throws(() => otelctx.Context.prototype.enter.call({}), TypeError)
assert.throws(() => otelctx.getProcessContextAttributes(['a']), refused)
let message
assert.throws(
  () => otelctx.publish(),
  (error) => {
    message = error.message
    return refused(error)
  },
)
assert.throws(() => otelctx.publish({ 'service.name': 'shop' }), refused)
const named = otelctx.makeNamedContext(['a', 'b'])
assert.throws(() => named.processContextAttributes, refused)
assert.throws(() => named.run(...ids, 1, { a: 'x' }, () => 1), refused)
assert.ok(named.build(...ids, 1, { b: 'x' }))
assert.strictEqual(otelctx.getContext(), undefined)
otelctx.setContext(undefined)
otelctx.clearContext()
assert.strictEqual(otelctx.runWithoutContext(() => 1), 1)
console.log(JSON.stringify({ reason: unsupportedReason, message }))
if (process.env.OTELCTX_HOLD) {
  try {
    readSync(0, Buffer.alloc(1))
  } catch {
    // It has ended.
  }
}
