'use strict'
// Has workers load a module that the process has loaded, whatever their options.

const workers = require('node:worker_threads')
const { syncBuiltinESMExports } = require('node:module')

/** A worker that has options of its own for Node.js, or an environment, may not get those of the process. */
function install(file) {
  const { Worker } = workers
  const withModule = (options) => {
    if (typeof options !== 'object' || options === null) return options
    const { execArgv, env } = options
    const hasOwn = Array.isArray(execArgv) || (typeof env === 'object' && env !== null)
    if (!hasOwn) return options
    const inherited = Array.isArray(execArgv) ? execArgv : process.execArgv
    return { ...options, execArgv: ['--require', file, ...inherited] }
  }
  const construct = (target, [script, options, ...rest], to) => {
    const make = (options) => Reflect.construct(target, [script, options, ...rest], to)
    const changed = withModule(options)
    if (changed === options) return make(options)
    try {
      return make(changed)
    } catch (error) {
      if (error?.code !== 'ERR_WORKER_INVALID_EXEC_ARGV') throw error
      // Options of the whole process are inherited, but may not be named.
      const execArgv = changed.execArgv.filter((option) => !error.message.includes(option))
      try {
        if (execArgv[0] === '--require') return make({ ...changed, execArgv })
      } catch {
        // The program's own options are wrong, or have values of their own.
      }
      const worker = make(options)
      process.emitWarning('otelctx publishes nothing in a worker', { code: 'OTELCTX', detail: error.message })
      return worker
    }
  }
  const patched = new Proxy(Worker, {
    construct(target, args, newTarget) {
      return construct(target, args, newTarget === patched ? target : newTarget)
    },
  })
  workers.Worker = patched
  syncBuiltinESMExports()
}

module.exports = { install }
