// The types of both kinds of modules are the same.
export * from './index.js'
