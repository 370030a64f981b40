// Checks that the active span of OpenTelemetry is published. Arguments: the folder with npm's packages, when
// otelctx/register is loaded, and the context manager: `own` is a class of the program's.
import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

const [, , folder, when, kind] = process.argv
const npm = createRequire(join(folder, 'x.js'))
const package_ = createRequire(import.meta.url)
const otelctx = package_(process.env.OTELCTX_PACKAGE)
const register = () => package_(join(process.env.OTELCTX_PACKAGE, 'lib/register.js'))

const { ROOT_CONTEXT, context, createContextKey, trace } = npm('@opentelemetry/api')
const { AsyncLocalStorageContextManager, AsyncHooksContextManager } = npm('@opentelemetry/context-async-hooks')
const { setRPCMetadata } = npm('@opentelemetry/core')

const DISPOSE = Symbol.dispose ?? Symbol.for('Symbol.dispose')

/** A manager that is unlike those of the SDK. */
class Own {
  #active = ROOT_CONTEXT
  active() {
    return this.#active
  }
  with(context, fn, thisArg, ...args) {
    const token = this.attach(context)
    try {
      return fn.call(thisArg, ...args)
    } finally {
      token.dispose()
    }
  }
  attach(context) {
    const before = this.#active
    this.#active = context
    let isDisposed = false
    const dispose = () => {
      if (!isDisposed) this.#active = before
      isDisposed = true
    }
    return { dispose, [DISPOSE]: dispose }
  }
  bind(context, target) {
    return (...args) => this.with(context, () => target(...args))
  }
  enable() {
    return this
  }
  disable() {
    return this
  }
}

const Manager = { own: Own, hooks: AsyncHooksContextManager, storage: AsyncLocalStorageContextManager }[kind]
const makeManager = () => {
  const manager = new Manager()
  manager.enable()
  return manager
}
const manager = makeManager()
if (when === 'before') register()
assert.ok(context.setGlobalContextManager(manager))
assert.equal(context.setGlobalContextManager(makeManager()), false)
if (when === 'after') register()

let last = 0
function span() {
  const ids = {
    traceId: (++last).toString(16).padStart(32, 'a'),
    spanId: last.toString(16).padStart(16, 'b'),
    traceFlags: last & 1,
  }
  return { spanContext: () => ids }
}

/** What is published here. */
function published() {
  const bytes = otelctx.getContext()?.debugBytes()
  if (bytes === undefined || bytes[24] !== 1) return undefined
  const buffer = Buffer.from(bytes)
  const ids = { traceId: buffer.toString('hex', 0, 16), spanId: buffer.toString('hex', 16, 24) }
  return { ...ids, traceFlags: buffer[25] }
}
/** The last value of each attribute, by its index. */
function lastValues(bytes) {
  const buffer = Buffer.from(bytes)
  const values = {}
  for (let at = 28; at < buffer.length; at += 2 + buffer[at + 1]) {
    values[buffer[at]] = buffer.toString('utf8', at + 2, at + 2 + buffer[at + 1])
  }
  return values
}
function route() {
  return lastValues(otelctx.getContext().debugBytes())[0] ?? ''
}

assert.equal(published(), undefined)
const [one, two] = [span(), span()]
const [inOne, inTwo] = [one, two].map((span) => trace.setSpan(context.active(), span))

// Nested contexts, arguments and results.
const thisArg = {}
const result = context.with(
  inOne,
  function (...args) {
    assert.equal(this, thisArg)
    assert.deepEqual(args, [1, 2, 3])
    assert.deepEqual(published(), one.spanContext())
    assert.equal(context.active(), inOne)
    context.with(inTwo, () => {
      assert.deepEqual(published(), two.spanContext())
      assert.equal(trace.getActiveSpan(), two)
    })
    assert.deepEqual(published(), one.spanContext())
    // A context without a span.
    const key = createContextKey('key')
    const without = ROOT_CONTEXT.setValue(key, 'value')
    context.with(without, () => {
      assert.equal(context.active(), without)
      assert.equal(published(), undefined)
      assert.equal(otelctx.getContext(), undefined)
      context.with(inTwo, () => assert.deepEqual(published(), two.spanContext()))
      assert.equal(context.active(), without)
    })
    assert.throws(() => context.with(inTwo, () => { throw new Error('mine') }), /mine/)
    assert.equal(context.active(), inOne)
    assert.deepEqual(published(), one.spanContext())
    return 42
  },
  thisArg,
  1,
  2,
  3,
)
assert.equal(result, 42)
assert.equal(published(), undefined)
assert.equal(context.active(), ROOT_CONTEXT)

// Functions and emitters that are bound.
const bound = context.bind(inTwo, (more) => [published(), context.active(), more])
assert.deepEqual(bound('x'), [two.spanContext(), inTwo, 'x'])
if (kind !== 'own') {
  const emitter = context.bind(inOne, new EventEmitter())
  let received
  emitter.on('event', () => { received = [published(), context.active()] })
  emitter.emit('event')
  assert.deepEqual(received, [one.spanContext(), inOne])

  // Asynchronous calls.
  await context.with(inOne, async () => {
    await null
    assert.deepEqual(published(), one.spanContext())
    await Promise.all([
      context.with(inTwo, async () => {
        await new Promise((resolve) => setTimeout(resolve, 2))
        assert.deepEqual(published(), two.spanContext())
        assert.equal(trace.getActiveSpan(), two)
      }),
      new Promise((resolve) => setTimeout(resolve, 1)),
    ])
    assert.deepEqual(published(), one.spanContext())
    assert.equal(trace.getActiveSpan(), one)
  })
}

// The route, which is known late.
const metadata = { type: 'http', span: one }
const request = setRPCMetadata(inOne, metadata)
context.with(request, () => {
  const outer = otelctx.getContext()
  assert.equal(route(), '')
  metadata.route = '/cart/:id'
  context.with(trace.setSpan(request, two), () => {
    assert.equal(route(), '/cart/:id')
    assert.deepEqual(published(), two.spanContext())
  })
  assert.equal(otelctx.getContext(), outer)
  assert.equal(route(), '/cart/:id')
  context.bind(request, () => {})
  context.with(request, () => assert.equal(route(), '/cart/:id'))
  // Of a router in a router, it is known bit by bit.
  metadata.route = '/cart/:id/items'
  context.bind(request, () => {})
  assert.equal(route(), '/cart/:id/items')
})

// The route of a request that changes more often than a record has room for; other attributes stay.
{
  const metadata = { type: 'http', span: one }
  const request = setRPCMetadata(inOne, metadata)
  const named = otelctx.makeNamedContext(['user.tier'])
  context.with(request, () => {
    named.append(otelctx.getContext(), { 'user.tier': 'gold' })
    for (let count = 0; count < 100; count++) {
      metadata.route = `/${'x'.repeat(count)}/${count}`
      context.bind(request, () => {})
      const record = Buffer.from(otelctx.getContext().debugBytes())
      const values = lastValues(record)
      assert.deepEqual(values, { 0: metadata.route, 1: 'gold' })
      assert.deepEqual(published(), one.spanContext())
    }
    assert.equal(otelctx.getContext().isTruncated(), false)
  })
}

// A request with many contexts: the newest get the route when another one does, others when they are next used.
{
  const metadata = { type: 'http', span: one }
  const request = setRPCMetadata(inOne, metadata)
  const all = Array.from({ length: 80 }, () => {
    const inner = trace.setSpan(request, span())
    return [inner, context.with(inner, otelctx.getContext)]
  })
  metadata.route = '/many'
  context.with(trace.setSpan(request, two), () => {})
  const have = all.map(([, published]) => lastValues(published.debugBytes())[0])
  assert.deepEqual(have, [...Array(17).fill(undefined), ...Array(63).fill('/many')])
  const [inner, first] = all[0]
  context.with(inner, () => {})
  assert.equal(lastValues(first.debugBytes())[0], '/many')
}

// Contexts of the program's own: OpenTelemetry's stays active.
const own = new otelctx.Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
context.with(inOne, () => {
  own.run(() => {
    assert.equal(otelctx.getContext(), own)
    assert.equal(context.active(), inOne)
    context.with(inTwo, () => {
      assert.deepEqual(published(), two.spanContext())
      assert.equal(context.active(), inTwo)
    })
    assert.equal(otelctx.getContext(), own)
    assert.equal(context.active(), inOne)
  })
  own.enter()
  assert.equal(otelctx.getContext(), own)
  assert.equal(context.active(), inOne)
})
assert.equal(context.active(), ROOT_CONTEXT)
assert.equal(otelctx.getContext(), undefined)

// The same while nothing of OpenTelemetry is active.
own.run(() => {
  assert.equal(otelctx.getContext(), own)
  assert.equal(context.active(), ROOT_CONTEXT)
  context.with(inOne, () => {
    assert.deepEqual(published(), one.spanContext())
    own.run(() => {
      assert.equal(otelctx.getContext(), own)
      assert.equal(context.active(), inOne)
    })
    assert.equal(context.active(), inOne)
    assert.deepEqual(published(), one.spanContext())
  })
  const without = ROOT_CONTEXT.setValue(createContextKey('key'), 'value')
  context.with(without, () => {
    own.run(() => {
      assert.equal(otelctx.getContext(), own)
      assert.equal(context.active(), without)
    })
    assert.equal(otelctx.getContext(), undefined)
    assert.equal(context.active(), without)
  })
  assert.equal(otelctx.getContext(), own)
  assert.equal(context.active(), ROOT_CONTEXT)
})
assert.equal(otelctx.getContext(), undefined)

// Without a context of the program's own: OpenTelemetry's stays active, and is not published.
context.with(inOne, () => {
  const isDetached = () => {
    assert.equal(published(), undefined)
    assert.equal(otelctx.getContext(), undefined)
    assert.equal(context.active(), inOne)
    context.with(inTwo, () => assert.deepEqual(published(), two.spanContext()))
  }
  otelctx.runWithoutContext(isDetached)
  assert.deepEqual(published(), one.spanContext())
  otelctx.runWithContext(undefined, isDetached)
  own.run(() => {
    otelctx.clearContext()
    isDetached()
  })
  assert.deepEqual(published(), one.spanContext())
  own.enter()
  otelctx.setContext(undefined)
  isDetached()
})
assert.equal(context.active(), ROOT_CONTEXT)
assert.equal(otelctx.getContext(), undefined)

// Contexts that were entered are not kept.
setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc')
const entered = (count) => {
  for (let made = 0; made < count; made++) new otelctx.Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1)).enter()
  collect()
  return process.memoryUsage().heapUsed
}
const before = entered(1000)
const growth = entered(100000) - before
assert.ok(growth < 5e6, `${growth} bytes`)
otelctx.clearContext()

// Attaching without a function, which newer managers have.
if (typeof manager.attach === 'function') {
  context.with(inOne, () => {
    const token = manager.attach(inTwo)
    assert.equal(context.active(), inTwo)
    assert.deepEqual(published(), two.spanContext())
    const spanless = ROOT_CONTEXT.setValue(createContextKey('key'), 1)
    const inner = manager.attach(spanless)
    assert.equal(context.active(), spanless)
    assert.equal(published(), undefined)
    inner.dispose()
    assert.deepEqual(published(), two.spanContext())
    token.dispose()
    token.dispose()
    assert.equal(context.active(), inOne)
    assert.deepEqual(published(), one.spanContext())
  })
  const token = manager.attach(inTwo)
  assert.deepEqual(published(), two.spanContext())
  token.dispose()
  assert.equal(context.active(), ROOT_CONTEXT)
  assert.equal(published(), undefined)

  // Disposing of it again changes nothing, and `using` calls another method.
  const newer = manager.attach(inOne)
  token.dispose()
  token[DISPOSE]()
  assert.equal(context.active(), inOne)
  assert.deepEqual(published(), one.spanContext())
  newer[DISPOSE]()
  assert.equal(context.active(), ROOT_CONTEXT)
  assert.equal(published(), undefined)
}

// A token whose end cannot be noticed.
if (kind === 'own') {
  const frozen = new Own()
  const { attach } = frozen
  frozen.attach = (context) => Object.freeze(attach.call(frozen, context))
  context.disable()
  assert.ok(context.setGlobalContextManager(frozen))
  const token = frozen.attach(inOne)
  assert.equal(context.active(), inOne)
  assert.equal(published(), undefined)
  token.dispose()
  context.disable()
  assert.ok(context.setGlobalContextManager(manager))
}

// IDs that are none.
for (const ids of [{ traceId: '0'.repeat(32), spanId: '0'.repeat(16) }, { traceId: 'x', spanId: 'y' }, {}]) {
  const invalid = trace.setSpan(ROOT_CONTEXT, { spanContext: () => ids })
  context.with(invalid, () => assert.equal(published(), undefined))
}

// While a manager is disabled, other calls are under way: nothing of OpenTelemetry stays published, contexts of the
// program's own do.
{
  let disabled
  const isDisabled = new Promise((resolve) => { disabled = resolve })
  const calls = [inOne, inTwo].map((active) => context.with(active, async () => {
    const before = published()
    await isDisabled
    return [before, published()]
  }))
  const ownCall = own.run(async () => {
    await isDisabled
    return otelctx.getContext() === own && own.debugBytes()[24] === 1
  })
  context.with(inTwo, () => {
    assert.deepEqual(published(), two.spanContext())
    context.disable()
    assert.equal(published(), undefined)
  })
  disabled()
  assert.deepEqual(await Promise.all(calls), [[one.spanContext(), undefined], [two.spanContext(), undefined]])
  assert.equal(await ownCall, true)
  assert.ok(context.setGlobalContextManager(manager))
  context.with(inOne, () => assert.deepEqual(published(), one.spanContext()))
}

// Another manager, after the first.
context.disable()
assert.equal(context.active(), ROOT_CONTEXT)
const second = makeManager()
assert.ok(context.setGlobalContextManager(second))
context.with(inOne, () => {
  assert.equal(context.active(), inOne)
  assert.deepEqual(published(), one.spanContext())
})
console.log(typeof manager.attach)
