// What the tests share. OTELCTX_PACKAGE is the folder of the package with its addon, OTELCTX the command,
// OTELCTX_NODE_MODULES folders with npm's packages, and OTELCTX_OLD_NODES programs, separated by colons, and OTELCTX_FAULTS the library that
// is made of programs/faults.c, and OTELCTX_OTHER one that publishes a process context when it is loaded.
import { spawn, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

export const folder = process.env.OTELCTX_PACKAGE
export const otelctx = createRequire(import.meta.url)(folder)
export const command = process.env.OTELCTX

export const traceId = Buffer.from('0af7651916cd43dd8448eb211c80319c', 'hex')
export const spanId = Buffer.from('b7ad6b7169203331', 'hex')

/** A record's fields. */
export function decode(bytes) {
  const buffer = Buffer.from(bytes)
  const size = buffer.readUInt16LE(26)
  const attributes = []
  for (let at = 28; at < 28 + size; ) {
    const end = at + 2 + buffer[at + 1]
    attributes.push([buffer[at], buffer.toString('utf8', at + 2, end)])
    at = end
  }
  return {
    traceId: buffer.toString('hex', 0, 16),
    spanId: buffer.toString('hex', 16, 24),
    valid: buffer[24],
    flags: buffer[25],
    length: buffer.length,
    attributes,
  }
}

/** Options that turn AsyncContextFrame on in every version. */
export const flags = process.versions.node.startsWith('22.')
  ? ['--experimental-async-context-frame']
  : []

/** Path of a program in `programs`. */
export function program(name) {
  return fileURLToPath(new URL(`programs/${name}`, import.meta.url))
}

/** Runs Node.js to its end. */
export function run(args, options = {}) {
  const env = { ...process.env, ...options.env }
  return spawnSync(process.execPath, args, { encoding: 'utf8', timeout: 600_000, ...options, env })
}

/**
 * Starts a program that prints a line of JSON when it is ready, and ends with its standard input. `next` sends it a byte, and returns its next
 * line.
 */
export async function start(args, { node = process.execPath, ...options } = {}) {
  const env = { ...process.env, ...options.env }
  const stdio = ['pipe', 'pipe', 'inherit']
  const child = spawn(node, args, { stdio, ...options, env })
  const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve(signal ?? code)))
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const line = async () => {
    const { value, done } = await lines.next()
    if (done) throw new Error(`it has ended: ${await ended}`)
    return JSON.parse(value)
  }
  const ready = await line()
  const next = () => {
    child.stdin.write('\n')
    return line()
  }
  const stop = async () => {
    child.stdin.end()
    return ended
  }
  return { pid: child.pid, ready, next, stop }
}

/** How often a process is dumped while one of its threads gets no CPU time to stop in. */
const ATTEMPTS = 10

/** What the command says of a process; undefined if there is no command. */
export function dump(pid) {
  if (command === undefined) return undefined
  const run = () =>
    spawnSync(command, ['dump', '--json', '--deadline', '60', String(pid)], { encoding: 'utf8' })
  let result = run()
  for (let count = 1; count < ATTEMPTS && result.stdout.includes('did not stop within'); count++)
    result = run()
  if (result.status !== 0) throw new Error(`otelctx: ${result.stderr}`)
  return JSON.parse(result.stdout)
}

/** `require` of the first folder with this package of npm's; undefined if there is none. */
export function npm(name) {
  const folders = process.env.OTELCTX_NODE_MODULES?.split(':') ?? []
  const found = folders.find((folder) => existsSync(join(folder, 'node_modules', name)))
  return found && createRequire(join(found, 'x.js'))
}
