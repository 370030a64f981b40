/** A value of each attribute, by the index of its key. Missing values are skipped. */
export type Attributes = ReadonlyArray<string | null | undefined>

/** The result of `getProcessContextAttributes`: attributes of the process context (OTEP 4719). */
export type ProcessContextAttributes = {
  readonly 'threadlocal.schema_version': 'nodejs_v1_dev'
  readonly 'threadlocal.attribute_key_map': readonly string[]
  /** Offset of the address of its record in an object, in bytes. */
  readonly 'threadlocal.js_object_record_offset': number
  /** Size of a word of V8's heap, in bytes. */
  readonly 'threadlocal.tagged_size': number
  /** Offset of its table in a `JSMap`, in bytes. */
  readonly 'threadlocal.js_map_table_offset': number
  /** Size of an `OrderedHashMap` before its counts, in bytes. */
  readonly 'threadlocal.ordered_hash_map_header_size': number
}

/** A context that can be attached: a trace, a span and attributes, in memory that readers find. */
export declare class Context {
  /**
   * @param traceId 16 bytes, which are not all zero; `undefined`, as `spanId`, for attributes alone.
   * @param spanId 8 bytes, likewise.
   * @param traceFlags The W3C trace flags, 0 to 255. The default is 0.
   * @param attributes Values by the indexes of their keys. 255 bytes of a value are kept, and 612 bytes of all.
   * @throws TypeError if an argument is of another type or size; RangeError if an ID is zero.
   */
  constructor(
    traceId: Uint8Array | undefined,
    spanId: Uint8Array | undefined,
    traceFlags?: number,
    attributes?: Attributes | null,
  )
  /**
   * Attaches the context here, and to the asynchronous calls that start from here on.
   * @throws Error if contexts cannot be published in this process.
   */
  enter(): void
  /**
   * Attaches the context while `fn` runs, and in the asynchronous calls that it starts. Returns what `fn` returns.
   * @throws Error if contexts cannot be published in this process.
   */
  run<T>(fn: () => T): T
  /** Appends attributes, for every call that the context is attached to. The last value of a key counts. */
  append(attributes: Attributes | null | undefined): void
  /** Has readers ignore the context from now on, wherever it is attached. */
  invalidate(): void
  /** Replaces the trace flags, wherever the context is attached. A context without IDs has none. */
  setTraceFlags(traceFlags: number): void
  /** Returns whether a value was cut, or an attribute omitted because there was no room. */
  isTruncated(): boolean
  /** A copy of the bytes that readers see, for tests. */
  debugBytes(): Uint8Array
}

/** Contexts whose attributes have names. */
export interface NamedContext<Name extends string = string> {
  /**
   * For another publisher of the process context.
   * @throws Error if contexts cannot be published in this process.
   */
  readonly processContextAttributes: ProcessContextAttributes
  /** @throws TypeError for a name that is none of the keys. */
  build(
    traceId: Uint8Array | undefined,
    spanId: Uint8Array | undefined,
    traceFlags?: number,
    attributes?: NamedAttributes<Name>,
  ): Context
  /** Builds a context, and enters it. */
  enter(
    traceId: Uint8Array | undefined,
    spanId: Uint8Array | undefined,
    traceFlags: number | undefined,
    attributes: NamedAttributes<Name> | undefined,
  ): Context
  /** Builds a context, and runs `fn` in it. */
  run<T>(
    traceId: Uint8Array | undefined,
    spanId: Uint8Array | undefined,
    traceFlags: number | undefined,
    attributes: NamedAttributes<Name> | undefined,
    fn: () => T,
  ): T
  /** Appends attributes to a context. */
  append(context: Context, attributes: NamedAttributes<Name>): void
}

export type NamedAttributes<Name extends string> = {
  readonly [name in Name]?: string | null | undefined
}

/** A value of a resource attribute. */
export type AttributeValue =
  | string
  | number
  | boolean
  | bigint
  | Uint8Array
  | ReadonlyArray<AttributeValue>

/** The context that is attached here: the same object. */
export declare function getContext(): Context | undefined
/** Attaches a context here; `undefined` detaches the one that is attached. */
export declare function setContext(context: Context | undefined): void
/** Runs `fn` with a context, or without one. */
export declare function runWithContext<T>(context: Context | undefined, fn: () => T): T
/** Detaches the context that is attached here. */
export declare function clearContext(): void
/** Runs `fn` without a context. */
export declare function runWithoutContext<T>(fn: () => T): T

/**
 * What a publisher of the process context needs, in addition to the resource, when it is another one than `publish`.
 *
 * @param keys At most 256 names, by their indexes in contexts. A later list starts with the earlier one, and each with
 * `http.route` if `otelctx/register` is loaded.
 * @throws Error if contexts cannot be published in this process.
 */
export declare function getProcessContextAttributes(
  keys: readonly string[],
): ProcessContextAttributes

/** Registers names of attributes, at most 256 in the process, whatever their order. */
export declare function makeNamedContext<const Name extends string>(
  keys: readonly Name[],
): NamedContext<Name>

/**
 * Publishes the process context: what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, and these attributes, which
 * take precedence. Replaces the one that was published before. Keys that are registered later are added to it.
 *
 * @throws Error if it cannot be published, or contexts cannot: it would announce what readers do not find.
 */
export declare function publish(attributes?: {
  readonly [name: string]: AttributeValue | null | undefined
}): void

/** The reason why contexts cannot be published in this process; `undefined` if they can. */
export declare const unsupportedReason: string | undefined
