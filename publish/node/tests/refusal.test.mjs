// Where contexts cannot be published.
import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'

import { dump, flags, folder, program, run, start } from './common.mjs'

// What the addon uses of V8, by the names that Node.js exports (src/v8.rs).
const [major] = process.versions.node.split('.')
const SET_POINTER = `_ZN2v86Object32SetAlignedPointerInInternalFieldEiPv${major === '26' ? 't' : ''}`
const EMBEDDER_DATA = '_ZN2v87Isolate36GetContinuationPreservedEmbedderDataEv'
const HAS_INSTANCE = '_ZN2v816FunctionTemplate11HasInstanceENS_5LocalINS_5ValueEEE'
const NEW_TEMPLATE =
  '_ZN2v816FunctionTemplate3NewEPNS_7IsolateEPFvRKNS_20FunctionCallbackInfoINS_5ValueEEEENS_5LocalIS4_EENSA_INS_9SignatureEEEiNS_19ConstructorBehaviorENS_14SideEffectTypeEPKNS_9CFunctionEttt'
/** Those without which there is no other one. */
const EXPORTS = [
  '_ZN2v87Isolate10GetCurrentEv',
  '_ZN2v87Isolate17GetCurrentContextEv',
  '_ZN2v86Object15GetIdentityHashEv',
  '_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEm',
  '_ZN2v812api_internal13DisposeGlobalEPm',
  '_ZN2v812api_internal8MakeWeakEPmPvPFvRKNS_16WeakCallbackInfoIvEEENS_16WeakCallbackTypeE',
  NEW_TEMPLATE,
  '_ZN2v816FunctionTemplate16InstanceTemplateEv',
  '_ZN2v814ObjectTemplate21SetInternalFieldCountEi',
  '_ZN2v816FunctionTemplate11GetFunctionENS_5LocalINS_7ContextEEE',
  HAS_INSTANCE,
]

/** The reason in a process with a fault of programs/faults.c. */
async function reasonWith(fault) {
  // Node.js itself starts without it.
  const change = `process.env.FAULT = ${JSON.stringify(fault)}`
  const env = { ...process.env, LD_PRELOAD: process.env.OTELCTX_FAULTS }
  const args = [...flags, program('refused.js'), change]
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { env })
  assert.equal(stderr, '')
  return JSON.parse(stdout).reason
}

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
    ['Object.defineProperty(process.versions, "electron", { value: "1" })', /Electron/],
    ['Object.defineProperty(process.versions, "bun", { value: "1" })', /Bun/],
    ['config.v8_enable_pointer_compression = 1', /pointer compression/],
    ['config.v8_enable_sandbox = 1', /sandbox/],
    ['Object.defineProperty(process, "arch", { value: "riscv64" })', /riscv64/],
  ]) {
    check(run([program('refused.js'), change]), reason)
  }
})

test('a startup snapshot has no addon, and the program that it starts may load one', () => {
  const directory = mkdtempSync(join(tmpdir(), 'otelctx-snapshot-'))
  // A snapshot is made of one file: of a bundle.
  const addon = readFileSync(join(folder, 'lib/addon.js'), 'utf8')
  const bundled = `const module = {}; { ${addon} }\nconst loaded = module.exports.load()`
  const load = `require('node:module').createRequire('/')(${JSON.stringify(folder)})`
  const shown = (setUp, value) => {
    const [entry, blob] = [join(directory, 'entry.js'), join(directory, 'blob')]
    const main = `() => console.log(String(${value}))`
    const snapshot = "require('node:v8').startupSnapshot"
    writeFileSync(entry, `${setUp}\n${snapshot}.setDeserializeMainFunction(${main})`)
    const built = run([...flags, '--snapshot-blob', blob, '--build-snapshot', entry])
    assert.equal(built.status, 0, built.stderr)
    return run([...flags, '--snapshot-blob', blob]).stdout
  }
  try {
    assert.match(shown(bundled, 'loaded.reason'), /^a startup snapshot has it, .*: load it when/)
    assert.equal(shown('', `${load}.unsupportedReason`), 'undefined\n')
  } finally {
    rmSync(directory, { recursive: true })
  }
})

test('the message names what runs the program, and helps', () => {
  const version = process.versions.node
  const define = (name, value) =>
    `Object.defineProperty(process.versions, '${name}', { value: '${value}' })`
  const disabled = 'Cannot load native addon because loading addons is disabled.'
  const help = 'start it without --no-addons, or with --allow-addons'
  const message = (options, change) => {
    const result = run([...options, program('refused.js'), change])
    assert.equal(result.stderr, '')
    return JSON.parse(result.stdout).message.replace('otelctx cannot publish on ', '')
  }
  // Its own version of Node.js is none that the program's author can choose.
  const electron = `${define('electron', '30.1')}; ${define('node', '20.1.0')}`
  assert.equal(message([], electron), 'Electron 30.1: Electron is not supported')
  assert.equal(message([], define('deno', '2.9')), 'Deno 2.9: Deno is not supported')
  assert.equal(message(['--no-addons'], ''), `Node.js ${version}: ${disabled}; ${help}`)
})

test('where the folder of the addons may not be read, the reason says so', () => {
  // Links must be readable, too.
  const real = realpathSync(folder)
  const files = [join(real, 'lib', '*'), join(real, 'package.json'), program('refused.js')]
  const permission = process.allowedNodeEnvironmentFlags.has('--permission')
    ? '--permission'
    : '--experimental-permission'
  const options = [permission, ...files.map((file) => `--allow-fs-read=${file}`)]
  const env = { OTELCTX_PACKAGE: real }
  const result = run([...options, '--no-warnings', program('refused.js')], { env })
  check(result, /prebuilds cannot be read: .*--allow-fs-read/)
})

test('in a bundle without its addons, the reason says so', () => {
  const copy = mkdtempSync(join(tmpdir(), 'otelctx-'))
  try {
    cpSync(join(folder, 'lib'), join(copy, 'lib'), { recursive: true })
    const addons = join(copy, 'prebuilds')
    const help = "copy the package's folder there, or leave the package out of the bundle"
    const reason = `its addons are not in ${addons}: ${help}`
    const result = run([program('refused.js')], { env: { OTELCTX_PACKAGE: join(copy, 'lib') } })
    assert.equal(result.stderr, '')
    assert.equal(JSON.parse(result.stdout).reason, reason)
  } finally {
    rmSync(copy, { recursive: true })
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

/** What a function of V8 that does something else, or is missing, leads to: see programs/faults.c. */
const FAULTS = {
  'null _ZN2v87Isolate10GetCurrentEv': 'V8 has no isolate on this thread',
  'null _ZN2v87Isolate17GetCurrentContextEv': 'V8 could not make the class',
  [`null ${NEW_TEMPLATE}`]: 'V8 could not make the class',
  'null _ZN2v816FunctionTemplate16InstanceTemplateEv': 'V8 could not make the class',
  'null _ZN2v816FunctionTemplate11GetFunctionENS_5LocalINS_7ContextEEE': 'V8 could not make the class',
  [`null ${HAS_INSTANCE}`]: 'V8 does not recognize an object of the class',
  'null SET_POINTER': 'V8 has the pointer of an object in an unknown place',
  'once SET_POINTER': 'V8 has the pointer of an object in an unknown place',
  'moved SET_POINTER': 'an object has its record in another place',
  [`null ${EMBEDDER_DATA}`]: 'AsyncLocalStorage does not use AsyncContextFrame',
  [`elsewhere ${EMBEDDER_DATA}`]: 'V8 has the asynchronous context in an unknown place',
  [`changing ${EMBEDDER_DATA}`]: 'V8 has the asynchronous context in a changing place',
  'hash _ZN2v86Object15GetIdentityHashEv': 'V8 has the map of the asynchronous context in another form',
  pipe: 'no pipe to read its own memory with: Too many open files (os error 24)',
}

test('each function that V8 does not export is the reason', async (t) => {
  if (process.env.OTELCTX_FAULTS === undefined) return t.skip('there is no C compiler')
  const missing = async (fault, name) => {
    assert.equal(await reasonWith(fault), `this Node.js does not export ${name}`)
  }
  await Promise.all(EXPORTS.map((name) => missing(`missing ${name}`, name)))
})

for (const [fault, reason] of Object.entries(FAULTS)) {
  test(`a V8 that differs is refused: ${fault}`, async (t) => {
    if (process.env.OTELCTX_FAULTS === undefined) return t.skip('there is no C compiler')
    assert.equal(await reasonWith(fault.replace('SET_POINTER', SET_POINTER)), reason)
  })
}

test('with the library that makes them, but no fault, contexts are published', (t) => {
  if (process.env.OTELCTX_FAULTS === undefined) return t.skip('there is no C compiler')
  const env = { LD_PRELOAD: process.env.OTELCTX_FAULTS }
  const source = 'require(process.env.OTELCTX_PACKAGE).unsupportedReason'
  assert.equal(run([...flags, '-p', source], { env }).stdout, 'undefined\n')
})

/** Starts `refused.js`; returns its reason, once no reader finds anything that it publishes. */
async function refusedBy(t, args, options) {
  const child = await start(args, { ...options, env: { ...options?.env, OTELCTX_HOLD: '1' } })
  try {
    const found = dump(child.pid)
    if (found === undefined) t.diagnostic('not read from outside: the command otelctx is not built')
    else assertUnpublished(found)
  } finally {
    assert.equal(await child.stop(), 0)
  }
  return child.ready.reason
}

/** Nothing is announced, and no thread has a context. */
function assertUnpublished(found) {
  assert.equal(found.process_context, null)
  assert.ok(found.threads.length > 0)
  for (const thread of found.threads) assert.equal(thread.context, null)
}

test('a reader finds no schema where contexts cannot be published', async (t) => {
  const args = [program('refused.js'), 'config.v8_enable_pointer_compression = 1']
  assert.match(await refusedBy(t, args), /pointer compression/)
  if (process.env.OTELCTX_FAULTS === undefined) return
  const env = { LD_PRELOAD: process.env.OTELCTX_FAULTS, FAULT: 'null _ZN2v87Isolate10GetCurrentEv' }
  assert.match(await refusedBy(t, [...flags, program('refused.js')], { env }), /no isolate/)
  const without = { 22: [], 24: ['--no-async-context-frame'] }[process.versions.node.split('.')[0]]
  if (without === undefined) return
  assert.match(await refusedBy(t, [...without, program('refused.js')]), /AsyncContextFrame/)
})

const olds = (process.env.OTELCTX_OLD_NODES ?? '').split(':').filter((node) => node !== '')

test('an older Node.js is refused, and a reader finds no schema', async (t) => {
  if (olds.length === 0) return t.skip('there is none')
  for (const node of olds) {
    const reason = await refusedBy(t, [program('refused.js')], { node })
    // They have V8 10 and 11, where it has another signature.
    assert.equal(
      reason,
      'this Node.js does not export _ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEm',
    )
  }
})

test('with an older Node.js, a registered program runs, and prints the reason once', (t) => {
  if (olds.length === 0) return t.skip('there is none')
  for (const node of olds) {
    for (const option of ['--require', '--import']) {
      const args = [option, join(folder, 'lib/register.js'), '-p', 'process.versions.node']
      const result = spawnSync(node, args, { encoding: 'utf8' })
      assert.equal(result.status, 0, result.stderr)
      const [warning, ...more] = result.stderr.split('\n').filter((line) => line.includes('[OTELCTX]'))
      assert.deepEqual(more, [])
      assert.ok(warning.includes(`otelctx cannot publish on Node.js ${result.stdout.trim()}: `), warning)
      assert.ok(warning.endsWith('; Node.js 22.7 or later is needed'), warning)
    }
  }
})

test('elsewhere, objects do nothing', () => {
  const source = `
    Object.defineProperty(process, 'platform', { value: 'darwin' })
    const assert = require('node:assert')
    const otelctx = require(process.env.OTELCTX_PACKAGE)
    const context = new otelctx.Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
    assert.strictEqual(context.run(() => 1), 1)
    context.enter()
    otelctx.setContext(context)
    assert.strictEqual(otelctx.getContext(), undefined)
    otelctx.clearContext()
    assert.strictEqual(otelctx.runWithContext(context, () => 2), 2)
    assert.strictEqual(otelctx.runWithoutContext(() => 3), 3)
    context.append(['a'])
    context.invalidate()
    context.setTraceFlags(1)
    assert.strictEqual(context.debugBytes()[25], 1)
    const none = new otelctx.Context()
    none.setTraceFlags(1)
    assert.strictEqual(none.debugBytes()[25], 0)
    assert.strictEqual(context.debugBytes().length, 31)
    assert.ok(otelctx.getProcessContextAttributes(['a']))
    assert.ok(otelctx.makeNamedContext(['a']).processContextAttributes)
    otelctx.publish({ a: 1 })
    assert.throws(() => otelctx.Context.prototype.run.call({}, () => 1), TypeError)
    console.log('done')`
  const result = run(['-e', source])
  assert.equal(result.stdout, 'done\n', result.stderr)
})
