import otelctx from './index.js'

export const {
  Context,
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
