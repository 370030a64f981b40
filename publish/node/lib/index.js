'use strict'

const context = require('./context')

exports.Context = context.Context
exports.clearContext = context.clearContext
exports.getContext = context.getContext
exports.getProcessContextAttributes = context.getProcessContextAttributes
exports.makeNamedContext = context.makeNamedContext
exports.publish = context.publish
exports.runWithContext = context.runWithContext
exports.runWithoutContext = context.runWithoutContext
exports.setContext = context.setContext
exports.unsupportedReason = context.reason
