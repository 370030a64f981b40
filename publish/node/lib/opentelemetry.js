'use strict'
// Publishes the active span of OpenTelemetry's API, whatever context manager the program registers.
//
// All copies of `@opentelemetry/api` 1.x share an object with what is registered. A manager is changed in place when it
// is registered there, or at once if it is already. If it has its contexts in an AsyncLocalStorage, that is replaced by
// one that uses ours, so that switching contexts costs once; else its `with` attaches a context of ours around it.

const { AsyncLocalStorage } = require('node:async_hooks')
const { isMainThread } = require('node:worker_threads')

const {
  Context,
  bridge,
  hide,
  indexesOf,
  invalidateBridged,
  isPublished,
  originOf,
  publish,
  setAttach,
  setAttribute,
  storage,
} = require('./context')
const { warnOnce } = require('./warn')

/** The property in which `@opentelemetry/api` 1.x keeps registrations (its src/internal/global-utils.ts). */
const API = Symbol.for('opentelemetry.js.api.1')
/** The API's key of the active span (src/trace/context-utils.ts). */
const SPAN = Symbol.for('OpenTelemetry Context Key SPAN')
/** The key of `@opentelemetry/core` for what is known of a request (src/trace/rpc-metadata.ts). */
const RPC_METADATA = Symbol.for('OpenTelemetry SDK Context Key RPC_METADATA')
const ROUTE = 'http.route'
/** Maximum number of contexts of a request that get its route when another one does: the newest. */
const MAX_ENTRIES = 64

/** The method that `using` calls; older versions of Node.js have none. */
const DISPOSE = Symbol.dispose ?? Symbol.for('Symbol.dispose')

/** The key of what belongs to a context of OpenTelemetry. */
const ENTRY = Symbol('otelctx')
/** The key, in a request's metadata, of what belongs to its contexts. */
const ENTRIES = Symbol('otelctx.entries')

const traceId = new Uint8Array(16)
const spanId = new Uint8Array(8)
let routeIndex
/** True if this thread publishes the resource: workers leave it to the main thread, if that publishes one. */
let publishesResource = false

/** How often a context manager was disabled: what belongs to contexts from before is not published any more. */
let generation = 0

/**
 * Ends the publication of everything that is active. With AsyncContextFrame, an AsyncLocalStorage is disabled for the current call
 * alone, and all others keep their contexts.
 */
function endAll() {
  generation++
  invalidateBridged()
}

/** Writes a hexadecimal ID's bytes, and returns whether it is one. */
function parse(hex, bytes) {
  if (typeof hex !== 'string' || hex.length !== 2 * bytes.length) return false
  let all = 0
  for (let at = 0; at < bytes.length; at++) {
    const high = digit(hex.charCodeAt(2 * at))
    const low = digit(hex.charCodeAt(2 * at + 1))
    if ((high | low) < 0) return false
    all |= bytes[at] = (high << 4) | low
  }
  return all !== 0
}

function digit(code) {
  if (code >= 48 && code <= 57) return code - 48
  if (code >= 97 && code <= 102) return code - 87
  if (code >= 65 && code <= 70) return code - 55
  return -1
}

/** The thread context of a context of OpenTelemetry, and the state of its route. */
class Entry {
  constructor(context) {
    /** The context of ours; undefined if there is no span. */
    this.threadContext = undefined
    this.metadata = undefined
    /** The route that was appended last. */
    this.route = undefined
    this.generation = generation
    const span = context.getValue(SPAN)
    const ids = span?.spanContext?.()
    if (ids === undefined || !parse(ids.traceId, traceId) || !parse(ids.spanId, spanId)) return
    this.threadContext = bridge(context, traceId, spanId, ids.traceFlags & 0xff)
    const metadata = context.getValue(RPC_METADATA)
    if (typeof metadata === 'object' && metadata !== null) this.setMetadata(metadata)
    if (publishesResource) publishResource(span)
  }

  setMetadata(metadata) {
    this.metadata = metadata
    const all = (metadata[ENTRIES] ??= [])
    all.push(this)
    if (all.length > MAX_ENTRIES) all.shift()
    if (typeof metadata.route === 'string') this.addRoute()
  }

  /** Appends the route to all contexts of the request. Frameworks know it bit by bit: the last one counts. */
  addRoute() {
    const { route } = this.metadata
    this.append(route)
    for (const entry of this.metadata[ENTRIES]) entry.append(route)
  }

  append(route) {
    if (this.route === route) return
    this.route = route
    setAttribute(this.threadContext, routeIndex, route)
  }
}

/** Returns our context for one of OpenTelemetry; undefined if it has no span, or is none. */
function threadContextOf(context) {
  if (typeof context !== 'object' || context === null) return undefined
  let entry = context[ENTRY]
  if (entry === undefined || entry.generation !== generation) {
    if (typeof context.getValue !== 'function') return undefined
    entry = new Entry(context)
    context[ENTRY] = entry
  } else if (entry.metadata !== undefined && entry.metadata.route !== entry.route) {
    if (typeof entry.metadata.route === 'string') entry.addRoute()
  }
  return entry.threadContext
}

/** Calls threadContextOf() and never throws, because programs must not fail for it. */
function find(context) {
  try {
    return threadContextOf(context)
  } catch (error) {
    warnOnce('spans', `otelctx cannot publish a span: ${error?.message}`)
    return undefined
  }
}

/** Publishes the resource of a span's tracer provider as the process context. */
function publishResource(span) {
  const { resource } = span
  if (resource === undefined || resource === null) return
  publishesResource = false
  const update = () => {
    try {
      const { 'service.name': name, ...others } = resource.attributes
      // Without detectors, the SDK makes up a name although the environment may have one.
      const isMadeUp = String(name).startsWith('unknown_service')
      publish(isMadeUp ? others : resource.attributes)
    } catch (error) {
      warnOnce('resource', `otelctx cannot publish the resource: ${error.message}`)
    }
  }
  update()
  // Some of its detectors may not have finished.
  if (resource.asyncAttributesPending) {
    Promise.resolve(resource.waitForAsyncAttributes?.()).then(update, () => {})
  }
}

/**
 * Stands for a context of OpenTelemetry that is not published: its record is one that readers ignore. The end of a `run`
 * around it must end both, and so they must be one.
 */
function unpublished(context) {
  const threadContext = bridge(context)
  threadContext.invalidate()
  hide(threadContext)
  return threadContext
}

/** OpenTelemetry's active context while the program has attached a context of its own. */
class Beneath {
  constructor(threadContext, active, outer) {
    this.threadContext = threadContext
    this.active = active
    this.outer = outer
  }
}

/** Stands in for the AsyncLocalStorage of a context manager. */
class Shared extends AsyncLocalStorage {
  /** The manager's own: for contexts without a span, and those from before. */
  #own

  constructor(own) {
    super()
    this.#own = own
  }

  getStore() {
    const threadContext = storage.getStore()
    if (threadContext !== undefined) {
      const origin = originOf(threadContext)
      if (origin !== undefined) return origin
    }
    let own = this.#own.getStore()
    while (own instanceof Beneath) {
      own = own.threadContext === threadContext ? own.active : own.outer
    }
    return own
  }

  run(context, fn, ...args) {
    const threadContext = find(context)
    if (threadContext !== undefined) return storage.run(threadContext, fn, ...args)
    if (storage.getStore() === undefined) return this.#own.run(context, fn, ...args)
    return this.#own.run(context, () => storage.run(undefined, fn, ...args))
  }

  enterWith(context) {
    let threadContext = find(context)
    if (threadContext === undefined && context !== undefined && context !== null) {
      threadContext = unpublished(context)
    }
    if (threadContext === undefined) this.#own.enterWith(context)
    storage.enterWith(threadContext)
  }

  exit(fn, ...args) {
    return this.run(undefined, fn, ...args)
  }

  withScope(context) {
    const before = this.getStore()
    this.enterWith(context)
    let isDisposed = false
    const dispose = () => {
      if (isDisposed) return
      isDisposed = true
      this.enterWith(before)
    }
    return { dispose, [DISPOSE]: dispose }
  }

  disable() {
    endAll()
    this.#own.disable()
    if (originOf(storage.getStore() ?? NONE) !== undefined) storage.enterWith(undefined)
  }

  // The program detaches its context: what is active of OpenTelemetry stays, and is not published.
  withoutSpan() {
    const active = this.getStore()
    return active === undefined ? undefined : unpublished(active)
  }

  // A program attaches a context of its own: what is active of OpenTelemetry stays.
  beneath(threadContext) {
    const own = this.#own.getStore()
    // Without a chain, which would keep all contexts that were ever entered.
    return new Beneath(threadContext, this.getStore(), own instanceof Beneath ? own.outer : own)
  }

  // Whether nothing of OpenTelemetry is active, nor beneath what is attached: then there is nothing to keep.
  #isIdle() {
    if (this.#own.getStore() !== undefined) return false
    const threadContext = storage.getStore()
    return threadContext === undefined || originOf(threadContext) === undefined
  }

  attachRun(threadContext, fn) {
    if (threadContext === undefined) return storage.run(this.withoutSpan(), fn)
    if (this.#isIdle()) return storage.run(threadContext, fn)
    const beneath = this.beneath(threadContext)
    return this.#own.run(beneath, () => storage.run(threadContext, fn))
  }

  attachEnter(threadContext) {
    if (threadContext === undefined) {
      storage.enterWith(this.withoutSpan())
      return
    }
    if (!this.#isIdle()) this.#own.enterWith(this.beneath(threadContext))
    storage.enterWith(threadContext)
  }
}
const NONE = new Context()

const INSTRUMENTED = new WeakSet()

/** Changes a context manager so that its contexts are published. */
function instrument(manager) {
  if (typeof manager !== 'object' || manager === null || INSTRUMENTED.has(manager)) return
  INSTRUMENTED.add(manager)
  if (typeof manager.bind === 'function') {
    const original = manager.bind
    manager.bind = function (context, ...rest) {
      // The route may be known now.
      find(context)
      return original.call(this, context, ...rest)
    }
  }
  const own = manager._asyncLocalStorage
  if (own instanceof AsyncLocalStorage && !(own instanceof Shared)) {
    const shared = new Shared(own)
    manager._asyncLocalStorage = shared
    setAttach(
      (threadContext) => shared.attachEnter(threadContext),
      (threadContext, fn) => shared.attachRun(threadContext, fn),
    )
    return
  }
  if (typeof manager.disable === 'function') {
    const original = manager.disable
    manager.disable = function (...args) {
      endAll()
      return original.apply(this, args)
    }
  }
  if (typeof manager.with === 'function') {
    const original = manager.with
    manager.with = function (context, ...rest) {
      return storage.run(find(context), () => original.call(this, context, ...rest))
    }
  }
  if (typeof manager.attach === 'function') {
    const original = manager.attach
    manager.attach = function (context, ...rest) {
      const before = storage.getStore()
      const token = original.call(this, context, ...rest)
      // What is never detached must not be attached.
      if (atDisposal(token, () => storage.enterWith(before))) storage.enterWith(find(context))
      return token
    }
  }
}

/** Calls a function when a token is disposed of first. Returns false if that cannot be noticed. */
function atDisposal(token, detach) {
  let isDisposed = false
  const wrapped = [DISPOSE, 'dispose'].filter((name) => {
    const original = token?.[name]
    if (typeof original !== 'function') return false
    const value = function (...args) {
      const result = original.apply(this, args)
      if (!isDisposed) detach()
      isDisposed = true
      return result
    }
    return Reflect.defineProperty(token, name, { value, configurable: true, writable: true })
  })
  return wrapped.length > 0
}

/** Instruments the context manager of the API, now and whenever one is registered. */
function watch(api) {
  if (typeof api !== 'object' || api === null) return
  tryInstrument(api.context)
  // The API deletes its own property when a manager is disabled, and sets it when one is registered.
  const inherited = Object.create(Object.getPrototypeOf(api), {
    context: {
      configurable: true,
      enumerable: false,
      get: () => undefined,
      set(manager) {
        tryInstrument(manager)
        const property = { value: manager, writable: true, enumerable: true, configurable: true }
        Object.defineProperty(this, 'context', property)
      },
    },
  })
  Object.setPrototypeOf(api, inherited)
}

function tryInstrument(manager) {
  try {
    instrument(manager)
  } catch (error) {
    warnOnce('manager', `otelctx cannot publish spans: ${error.message}`)
  }
}

function install() {
  // First, because it fails if another publisher has published: then no key is taken from the program.
  const isFirst = isMainThread || !isPublished()
  if (isFirst) publish()
  ;[routeIndex] = indexesOf([ROUTE])
  publishesResource = isFirst
  const api = globalThis[API]
  if (api !== undefined) {
    watch(api)
    return
  }
  Object.defineProperty(globalThis, API, {
    configurable: true,
    enumerable: true,
    get: () => undefined,
    set(api) {
      const property = { value: api, writable: true, enumerable: true, configurable: true }
      Object.defineProperty(globalThis, API, property)
      watch(api)
    },
  })
}

module.exports = { install }
