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
  const patched = new Proxy(Worker, {
    construct(target, [script, options, ...rest], newTarget) {
      const to = newTarget === patched ? target : newTarget
      return Reflect.construct(target, [script, withModule(options), ...rest], to)
    },
  })
  workers.Worker = patched
  syncBuiltinESMExports()
}

module.exports = { install }
