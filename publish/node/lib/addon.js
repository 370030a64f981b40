'use strict'
// Loads the addon, and says why there is none. Nothing here throws.

const { closeSync, existsSync, openSync, readSync } = require('node:fs')
const { createRequire } = require('node:module')
const path = require('node:path')
const { startupSnapshot } = require('node:v8')

/** Runtimes that have the modules of Node.js, by their names in `process.versions`. */
const OTHERS = { electron: 'Electron', bun: 'Bun', deno: 'Deno' }
const other = Object.keys(OTHERS).find((name) => process.versions[name] !== undefined)
const isNode = other === undefined
/** The runtime that runs the program: `Node.js 24.21.0`. */
const runtime = isNode
  ? `Node.js ${process.versions.node}`
  : `${OTHERS[other]} ${process.versions[other]}`

/** Returns why the addon cannot be used in this process, before it is loaded; undefined if it can. */
function unsupported() {
  if (!isNode) return `${OTHERS[other]} is not supported`
  const variables = process.config?.variables ?? {}
  if (isSet(variables.v8_enable_pointer_compression)) {
    return 'this Node.js is built with pointer compression'
  }
  if (isSet(variables.v8_enable_sandbox)) return "this Node.js is built with V8's sandbox"
  if (startupSnapshot?.isBuildingSnapshot?.()) {
    return 'a startup snapshot has it, which can have no addon: load it when the program runs'
  }
  return undefined
}

function isSet(value) {
  return value === 1 || value === true || value === '1' || value === 'true'
}

/** Returns the C library that this Node.js is linked with, by the name of its dynamic linker. */
function libcOf(program) {
  try {
    const file = openSync(program, 'r')
    try {
      const start = Buffer.alloc(4096)
      readSync(file, start, 0, start.length, 0)
      return start.includes('/ld-musl-') ? 'musl' : 'gnu'
    } finally {
      closeSync(file)
    }
  } catch {
    return 'gnu'
  }
}

/** Returns the addon's exports: the same in this environment, even if the program reloads its modules. */
function exportsOf(file) {
  const key = Symbol.for(`otelctx ${file}`)
  if (globalThis[key] === undefined) {
    // The `require` of bundles and of single executable applications loads no other files.
    Object.defineProperty(globalThis, key, { value: createRequire(file)(file) })
  }
  return globalThis[key]
}

/** Returns the addon's exports, or `{ reason }`. */
function load() {
  const reason = unsupported()
  if (reason !== undefined) return { reason }
  const platform = `linux-${process.arch}`
  const folder = path.join(__dirname, '..', 'prebuilds')
  try {
    if (!existsSync(folder)) {
      const help = "copy the package's folder there, or leave the package out of the bundle"
      return { reason: `its addons are not in ${folder}: ${help}` }
    }
  } catch (error) {
    // With `--permission`.
    return { reason: `${folder} cannot be read: ${error.message}` }
  }
  const reasons = {}
  // The addon for the other C library cannot be loaded.
  for (const libc of ['gnu', 'musl']) {
    const file = path.join(folder, `${platform}-${libc}`, 'otelctx.node')
    try {
      return exportsOf(file)
    } catch (error) {
      if (error?.code !== 'MODULE_NOT_FOUND') reasons[libc] = String(error?.message ?? error)
    }
  }
  const libc = libcOf(process.execPath)
  return { reason: reasons[libc] ?? `there is no addon for ${platform}-${libc}` }
}

module.exports = { isNode, load, runtime }
