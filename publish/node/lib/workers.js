'use strict'
// Makes workers load a module that the process has loaded, whatever their options.

const workers = require('node:worker_threads')
const { syncBuiltinESMExports } = require('node:module')

const { warnOnce } = require('./warn')

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
  // Of the process's options that a worker inherits, which may not be named for it.
  const refused = ({ message }) => message.slice(message.indexOf(': ') + 2).split(', ')
  const construct = (target, [script, options, ...rest], to) => {
    const make = (options) => Reflect.construct(target, [script, options, ...rest], to)
    const changed = withModule(options)
    if (changed === options) return make(options)
    try {
      return make(changed)
    } catch (error) {
      if (error?.code !== 'ERR_WORKER_INVALID_EXEC_ARGV') throw error
      if (!Array.isArray(options.execArgv)) {
        const all = refused(error)
        const execArgv = changed.execArgv.filter((option) => !all.includes(option))
        try {
          return make({ ...changed, execArgv })
        } catch {
          // An option may have a value that does not stand alone, or the program's environment be wrong.
        }
      }
      const worker = make(options)
      warnOnce('worker', `otelctx publishes nothing in a worker: ${error.message}`)
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
