import otelctx from './index.js'

export const {
  ThreadContext,
  clearContext,
  getContext,
  getProcessContextAttributes,
  makeNamedContext,
  publish,
  runWithContext,
  runWithoutContext,
  setContext,
  unsupportedReason,
} = otelctx
