// The active span of OpenTelemetry is published: otelctx/register.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'

import { dump, flags, folder, npm, program, run, start } from './common.mjs'

const register = join(folder, 'lib/register.js')
const folders = process.env.OTELCTX_NODE_MODULES?.split(':') ?? []
const modules = folders.filter((folder) => existsSync(join(folder, 'node_modules')))

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
  const file = join(folder, 'node_modules/@opentelemetry/context-async-hooks/package.json')
  return Number(require(file).version.split('.')[0])
}

test('a server publishes its requests, and their routes once they are known', async (t) => {
  const require = npm('@opentelemetry/instrumentation-express')
  if (require === undefined) return t.skip('there is no instrumentation')
  for (const how of [['--require', register], ['--import', register], undefined]) {
    const env = { OTEL_SERVICE_NAME: 'server' }
    const args = [...flags]
    if (how === undefined) env.NODE_OPTIONS = `--require ${register}`
    else args.push(...how)
    args.push(program('server.js'), require.resolve('express'))
    const child = await start(args, { env })
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
})

test('workers publish, too, whatever their options', () => {
  // Options of the process, which workers have but may not be given.
  for (const own of [[], ['--expose-gc', '--title=x']]) {
    const result = run([...flags, ...own, '--require', register, program('registered-workers.mjs')])
    assert.equal(result.stderr, '')
    assert.equal(result.stdout, '[true,true,true,true]\n')
  }
})

test('where contexts cannot be published, the program runs, and a warning says why', () => {
  const source = 'Object.defineProperty(process.versions, "electron", { value: "1" })'
  const result = run(['-e', `${source}; require(${JSON.stringify(register)}); console.log(1)`])
  assert.equal(result.stdout, '1\n')
  assert.match(result.stderr, /OTELCTX.*electron is not supported/)
  assert.equal(result.status, 0)
})
