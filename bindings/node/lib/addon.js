'use strict'
// Loads the addon, and says why there is none. Nothing here throws.

const path = require('node:path')

/** Why the addon cannot be used in this process, before it is loaded; undefined if it can. */
function unsupported() {
  const { versions, config } = process
  for (const runtime of ['electron', 'bun', 'deno']) {
    if (versions[runtime] !== undefined) return `${runtime} is not supported`
  }
  const variables = config?.variables ?? {}
  if (isSet(variables.v8_enable_pointer_compression)) {
    return 'this Node.js is built with pointer compression'
  }
  if (isSet(variables.v8_enable_sandbox)) return "this Node.js is built with V8's sandbox"
  return undefined
}

function isSet(value) {
  return value === 1 || value === true || value === '1' || value === 'true'
}

/** The addon's exports, or `{ reason }`. */
function load() {
  const reason = unsupported()
  if (reason !== undefined) return { reason }
  const platform = `linux-${process.arch}`
  const reasons = []
  // The addon for the other C library cannot be loaded.
  for (const libc of ['gnu', 'musl']) {
    const file = path.join(__dirname, '..', 'prebuilds', `${platform}-${libc}`, 'otelctx.node')
    try {
      return require(file)
    } catch (error) {
      if (error?.code !== 'MODULE_NOT_FOUND') reasons.push(String(error?.message ?? error))
    }
  }
  return { reason: reasons[0] ?? `there is no addon for ${platform}` }
}

module.exports = { load }
