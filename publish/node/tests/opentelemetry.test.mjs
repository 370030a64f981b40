// The active span of OpenTelemetry is published: otelctx/register.
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'

import { dump, flags, folder, npm, program, run, start } from './common.mjs'

const register = join(folder, 'lib/register.js')
const folders = process.env.OTELCTX_NODE_MODULES?.split(':') ?? []
const hooks = 'node_modules/@opentelemetry/context-async-hooks/package.json'
const modules = folders.filter((folder) => existsSync(join(folder, hooks)) && folder !== autoInstrumented())

test('whatever context manager is registered, and when', (t) => {
  if (modules.length === 0) return t.skip('there are no packages of OpenTelemetry')
  for (const folder of modules) {
    const version = npmVersion(folder)
    // The newest have no manager with hooks.
    const kinds = version < 3 ? ['storage', 'hooks', 'own'] : ['storage', 'own']
    for (const kind of kinds) {
      for (const when of ['before', 'after']) {
        const result = run([...flags, program('spans.mjs'), folder, when, kind])
        assert.equal(result.stderr, '', `${version} ${kind} ${when}`)
        assert.equal(result.status, 0)
        if (kind === 'storage') assert.equal(result.stdout, 'function\n')
      }
    }
  }
})

function npmVersion(folder) {
  const require = npm('@opentelemetry/context-async-hooks')
  assert.ok(require)
  return Number(require(join(folder, hooks)).version.split('.')[0])
}

test('a server publishes its requests, and their routes once they are known', async (t) => {
  const require = npm('@opentelemetry/instrumentation-express')
  if (require === undefined) return t.skip('there is no instrumentation')
  const options = ['--require', '--import'].map((option) => [option, register])
  for (const [how, isVariable] of options.flatMap((how) => [[how, false], [how, true]])) {
    const env = { OTEL_SERVICE_NAME: 'server' }
    const args = [...flags]
    if (isVariable) env.NODE_OPTIONS = how.join(' ')
    else args.push(...how)
    args.push(program('server.js'), require.resolve('express'))
    const child = await start(args, { env })
    await checkServer(child)
  }
})

/** What the handlers of `server.js` have seen, and what is seen of it from outside. Ends it. */
async function checkServer(child) {
  try {
    assert.equal(child.ready.handlers, 40)
    assert.equal(child.ready.wrong, 0, JSON.stringify(child.ready))
    const found = dump(child.pid)
    if (found !== undefined) {
      const { resource } = found.process_context
      // That of the tracer provider, which knows more than the environment.
      assert.equal(resource['service.name'], 'server')
      assert.equal(resource.shop, 'open')
      const main = found.threads.find((thread) => thread.tid === child.pid)
      assert.deepEqual(main.context, child.ready.held)
    }
  } finally {
    await child.stop()
  }
}

/** The folder with OpenTelemetry's auto-instrumentation; undefined if there is none. */
function autoInstrumented() {
  const name = 'node_modules/@opentelemetry/auto-instrumentations-node'
  return folders.find((folder) => existsSync(join(folder, name)))
}

test("OpenTelemetry's auto-instrumentation publishes its requests, whichever is loaded first", async (t) => {
  const cwd = autoInstrumented()
  if (cwd === undefined) return t.skip('there is no auto-instrumentation')
  const express = join(cwd, 'node_modules/express/index.js')
  const instrumentation = '@opentelemetry/auto-instrumentations-node/register'
  const [major] = process.versions.node.split('.')
  const orders = {
    22: ['--require', instrumentation, '--import', register],
    24: ['--require', register, '--require', instrumentation],
    26: ['--import', register, '--import', instrumentation],
  }
  // All of them with one version, as each start takes a second.
  for (const how of major === '24' ? Object.values(orders) : [orders[major]]) {
    const env = {
      OTEL_SERVICE_NAME: 'server',
      OTEL_RESOURCE_ATTRIBUTES: 'shop=open',
      // Nothing listens there: spans are not sent. It asks no cloud where it runs.
      OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:9',
      OTEL_METRICS_EXPORTER: 'none',
      OTEL_LOGS_EXPORTER: 'none',
      OTEL_NODE_RESOURCE_DETECTORS: 'env',
      OTEL_LOG_LEVEL: 'none',
    }
    const args = [...flags, ...how, program('server.js'), express, 'auto']
    const child = await start(args, { env, cwd })
    await checkServer(child)
  }
})

test('workers publish, too, whatever their options', async (t) => {
  // Options of the process, which workers have but may not be given.
  for (const own of [[], ['--expose-gc', '--title=x']]) {
    const args = [...flags, ...own, '--require', register, program('registered-workers.mjs')]
    const child = await start(args)
    try {
      assert.equal(child.ready.length, 4)
      const found = dump(child.pid)
      if (found === undefined) return t.skip('the command otelctx is not built')
      const traces = found.threads.map((thread) => thread.context?.trace_id).filter(Boolean)
      assert.deepEqual(traces.sort(), child.ready.sort())
    } finally {
      assert.equal(await child.stop(), 0)
    }
  }
})

test("a worker keeps the process's options, without the ones it must not be given", () => {
  const folder = mkdtempSync(join(tmpdir(), 'otelctx-'))
  try {
    const mark = join(folder, 'mark.js')
    writeFileSync(mark, 'globalThis.mark = "kept"')
    const isRegistered = 'Object.hasOwn(globalThis, Symbol.for("opentelemetry.js.api.1"))'
    const inWorker = `require("node:worker_threads").parentPort.postMessage([globalThis.mark, ${isRegistered}])`
    const source = `
      const { Worker } = require('node:worker_threads')
      const worker = new Worker(${JSON.stringify(inWorker)}, { eval: true, env: { A: '1' } })
      worker.on('message', (message) => console.log(JSON.stringify(message)))`
    // Only the process can have the first one, whose name contains "-r".
    const own = ['--report-on-fatalerror', '-r', mark, '--require', register]
    const result = run([...flags, ...own, '-e', source])
    assert.equal(result.stderr, '')
    assert.equal(result.stdout, '["kept",true]\n')
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test('a worker that has not the flag that it needs is reported, and the others publish', () => {
  const [major] = process.versions.node.split('.')
  const needs = major === '22'
  // Each with the process's options: on its command line, or in the environment.
  const own = [{ execArgv: [] }, { env: {} }, { env: {}, execArgv: [] }, { env: { A: '1' }, execArgv: ['--no-warnings'] }]
  own.push({}, { execArgv: flags }, { env: {}, execArgv: flags })
  const without = { 24: ['--no-async-context-frame'] }[major]
  if (without !== undefined) own.push({ execArgv: without })
  const inWorker = `
    const { reason } = require(${JSON.stringify(join(folder, 'lib/context.js'))})
    const isRegistered = Object.hasOwn(globalThis, Symbol.for("opentelemetry.js.api.1"))
    require("node:worker_threads").parentPort.postMessage(isRegistered && reason === undefined)`
  // One at a time: a warning is that of the worker that is running.
  const source = `
    const { Worker } = require('node:worker_threads')
    const run = (options) => new Promise((resolve) => {
      const worker = new Worker(${JSON.stringify(inWorker)}, { eval: true, ...options })
      let publishes
      worker.on('message', (message) => { publishes = message })
      worker.on('exit', () => resolve(publishes))
    })
    const all = []
    ;(async () => {
      for (const options of ${JSON.stringify(own)}) all.push(await run(options))
      console.log(JSON.stringify(all))
    })()`
  for (const isVariable of [false, true]) {
    const how = [...flags, '--require', register]
    const env = isVariable ? { NODE_OPTIONS: how.join(' ') } : {}
    const result = run([...(isVariable ? [] : how), '-e', source], { env })
    const publish = JSON.parse(result.stdout)
    const expected = own.map(({ execArgv, env }) => {
      if (execArgv !== undefined && execArgv === without) return false
      if (!needs || execArgv === flags) return true
      // The environment has the flag, and workers without an environment of their own have it, too.
      if (isVariable) return env === undefined
      return execArgv === undefined
    })
    assert.deepEqual(publish, expected, `${isVariable} ${result.stderr}`)
    const reports = result.stderr.match(/\[OTELCTX\].*AsyncContextFrame.*/g) ?? []
    const isQuiet = ({ execArgv }) => execArgv?.includes('--no-warnings')
    const unreported = own.filter((options, at) => !publish[at] && isQuiet(options))
    const missing = publish.filter((it) => !it).length - unreported.length
    assert.equal(reports.length, missing, `${isVariable} ${result.stderr}`)
  }
})

test('wrong options of a worker fail as without otelctx', () => {
  const source = `
    const { Worker } = require('node:worker_threads')
    for (const execArgv of [['--bogus'], ['--title=x'], ['--expose-gc', '--no-warnings']]) {
      try {
        new Worker('', { eval: true, execArgv })
        console.log('started')
      } catch (error) {
        console.log(error.code, error.message)
      }
    }`
  // The process has one of them, too.
  const args = [...flags, '--title=x', '-e', source]
  const without = run(args)
  assert.match(without.stdout, /^(ERR_WORKER_INVALID_EXEC_ARGV .*\n){3}$/)
  const result = run(['--require', register, ...args])
  assert.equal(result.stdout, without.stdout)
  assert.equal(result.stderr, '')
})

/** Runs a program that starts a worker, with otelctx/register; it must run as it does without. */
function runsWithOneWarning(args, env, warning) {
  const source = `
    const { Worker } = require('node:worker_threads')
    new Worker('', { eval: true }).on('exit', (code) => console.log('ran', code))`
  const result = run([...flags, ...args, '--require', register, '-e', source], { env })
  assert.equal(result.stdout, 'ran 0\n', result.stderr)
  assert.equal(result.status, 0)
  const warnings = result.stderr.match(/\[OTELCTX\].*/g)
  assert.equal(warnings?.length, 1, result.stderr)
  assert.match(warnings[0], warning)
}

test('a program runs where another publisher was first, and a warning says so', (t) => {
  const require = npm('dd-trace')
  if (require === undefined) return t.skip('there is no dd-trace')
  // It would wait for its agent.
  const env = { DD_TRACE_OTEL_CTX_ENABLED: 'true', DD_TRACE_STARTUP_LOGS: 'false', DD_INSTRUMENTATION_TELEMETRY_ENABLED: 'false' }
  runsWithOneWarning(['--require', require.resolve('dd-trace/init')], env, /such as dd-trace.*remove one of them$/m)
})

test('a program runs whose resource is too long, and a warning says so', () => {
  const env = { OTEL_RESOURCE_ATTRIBUTES: `long=${'x'.repeat(100_000)}` }
  runsWithOneWarning([], env, /otelctx publishes no spans/)
})

test('a span that cannot be published is reported once, and the program goes on', () => {
  const source = `
    require(${JSON.stringify(register)})
    const manager = { with: (_, fn) => fn() }
    const api = {}
    globalThis[Symbol.for('opentelemetry.js.api.1')] = api
    api.context = manager
    const context = { getValue() { throw new Error('mine') } }
    for (let count = 0; count < 3; count++) console.log(manager.with(context, () => count))`
  const result = run([...flags, '-e', source])
  assert.equal(result.stdout, '0\n1\n2\n')
  assert.equal(result.stderr.match(/\[OTELCTX\].*cannot publish a span: mine/g)?.length, 1, result.stderr)
})

test('a program runs whose first key is taken, and a warning says so', (t) => {
  const source = `
    const otelctx = require(process.env.OTELCTX_PACKAGE)
    otelctx.publish()
    otelctx.getProcessContextAttributes(Array.from({ length: 256 }, (_, key) => 'key ' + key))
    require(${JSON.stringify(register)})
    console.log('ran')`
  const result = run([...flags, '-e', source])
  assert.equal(result.stdout, 'ran\n', result.stderr)
  assert.match(result.stderr, /OTELCTX.*otelctx publishes no spans/)
})

test('where contexts cannot be published, the program runs, and a warning says why', () => {
  const source = 'Object.defineProperty(process.versions, "electron", { value: "1" })'
  const result = run(['-e', `${source}; require(${JSON.stringify(register)}); console.log(1)`])
  assert.equal(result.stdout, '1\n')
  assert.match(result.stderr, /OTELCTX.*on Electron 1: Electron is not supported$/m)
  assert.equal(result.status, 0)
})
