/*
 * otelctx: publish OpenTelemetry process and thread context from C.
 *
 * A program that uses this library publishes what it is (process context, OTEP 4719) and what each of
 * its threads is working on (thread context, OTEP 4947) in its own memory. A tool that may read this
 * memory, for example `otelctx dump PID`, can tell which trace and which route each thread is working
 * on.
 *
 *     otelctx_error error;
 *     otelctx_process *process = otelctx_process_detect(OTELCTX_DETECT_DEFAULT);
 *     otelctx_process_service_name(process, "shop");
 *     otelctx_published *published = otelctx_publish(process, &error);
 *     otelctx_process_free(process);
 *     const otelctx_key *route = otelctx_key_get("http.route", &error);
 *
 *     otelctx_context *context = otelctx_context_new(trace_id, span_id, OTELCTX_SAMPLED);
 *     otelctx_context_append(context, route, "/cart", OTELCTX_NUL_TERMINATED);
 *     otelctx_context_attach(context);
 *     ... the request ...
 *     otelctx_context_free(context);     // detaches it
 *
 * Rules for all functions, unless a function says otherwise:
 *
 * - Arguments. A null handle, a null string or text that is not UTF-8 is refused with a code, or with
 *   null, 0 or false by functions that return no code; nothing changes then. Freeing null does nothing.
 *   A handle that was freed must not be used again.
 * - IDs are 16 and 8 bytes, in W3C order, both or neither: for attributes alone, both pointers are null,
 *   and flags are ignored. An ID of zero is refused with OTELCTX_ZERO_ID.
 * - Lengths are in bytes. OTELCTX_NUL_TERMINATED stands for the length of a C string.
 * - Threads. Every function may be called on any thread. Functions on the same handle must not run at
 *   the same time, except on keys and shared contexts. A context, a scope and what is attached belong
 *   to the thread that created them; other threads get OTELCTX_WRONG_THREAD. Functions without a handle
 *   act on the calling thread.
 * - Signal handlers may call otelctx_describe(), otelctx_version(), otelctx_thread_slot() if the thread
 *   has called it before, and the functions that read IDs, flags and the record of a shared context. If
 *   the thread has attached a context before, they may call otelctx_context_attach(), and
 *   otelctx_context_detach() for what they have attached. They must call nothing else.
 * - fork. Every function may be called in the child. It has no process context, unless
 *   otelctx_republish_after_fork() was called; contexts and keys of the thread that forked remain
 *   valid, those of other threads must not be used.
 * - No function throws, unwinds or calls abort(), except when memory is exhausted. errno is
 *   undefined after a call.
 */

#ifndef OTELCTX_H
#define OTELCTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// The thread-local pointer to the attached record, which readers find by this name.
#define OTELCTX_SYMBOL "otel_thread_ctx_v1"
/// The length of a string that ends at its first zero byte.
#define OTELCTX_NUL_TERMINATED ((size_t)-1)

#ifdef __cplusplus
extern "C" {
#endif

/// Withdraws the process context of this library, unless contexts may refer to its keys. Returns
/// whether the library publishes none any more. For publishers that are not part of otelctx: copies
/// of otelctx in one process make way for each other without it.
bool otelctx_withdraw(void);

#ifdef __cplusplus
}
#endif

/// Detect OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES. If they set no `service.name`, it is
/// `unknown_service:` and the executable's name.
#define OTELCTX_DETECT_ENVIRONMENT 1

/// Detect `process.pid`, `process.executable.name` and `process.executable.path`.
#define OTELCTX_DETECT_PROCESS 2

/// Detect `process.command_args`. Arguments can contain secrets.
#define OTELCTX_DETECT_COMMAND_ARGS 4

/// Set `telemetry.sdk.language`, `.name` and `.version`.
#define OTELCTX_DETECT_SDK 8

/// Set a random `service.instance.id`, so that each forked child has its own.
#define OTELCTX_DETECT_INSTANCE_ID 16

/// All of these except the arguments.
#define OTELCTX_DETECT_DEFAULT 27

/// The W3C trace flag that the trace is sampled.
#define OTELCTX_SAMPLED 1

/// Result of a call. Later versions may add codes; the numbers do not change.
typedef enum otelctx_result {
  /// The call succeeded.
  OTELCTX_OK = 0,
  /// A pointer is null or an argument is out of range.
  OTELCTX_INVALID_ARGUMENT = 1,
  /// Text is not UTF-8.
  OTELCTX_INVALID_UTF8 = 2,
  /// A value was cut to 255 bytes, or an attribute left out: no room, or an unpublished key.
  OTELCTX_TRUNCATED = 3,
  /// The context or the scope belongs to another thread.
  OTELCTX_WRONG_THREAD = 4,
  /// The context is attached, so it cannot be attached again, moved or get other IDs.
  OTELCTX_ATTACHED = 5,
  /// The context or the scope is not attached.
  OTELCTX_NOT_ATTACHED = 6,
  /// The calling thread is ending and has freed its contexts.
  OTELCTX_THREAD_ENDING = 7,
  /// The key could not be registered: it has no name, 256 others are registered, or the process
  /// context has no room for it.
  OTELCTX_KEY_REFUSED = 8,
  /// This library has published a process context already.
  OTELCTX_ALREADY_PUBLISHED = 9,
  /// Another publisher in this process has published a process context.
  OTELCTX_FOREIGN = 10,
  /// This library has published no process context in this process.
  OTELCTX_NOT_PUBLISHED = 11,
  /// Readers would reject the process context.
  OTELCTX_REJECTED = 12,
  /// A system call failed.
  OTELCTX_SYSTEM = 13,
  /// Other processes cannot find the thread-local variable.
  OTELCTX_NOT_EXPORTED = 14,
  /// OTEL_RESOURCE_ATTRIBUTES is malformed and was ignored.
  OTELCTX_MALFORMED_ENVIRONMENT = 15,
  /// Another thread is changing the same publication.
  OTELCTX_BUSY = 16,
  /// A defect of this library; please report it.
  OTELCTX_INTERNAL = 17,
  /// An ID is zero. For attributes alone, give neither ID.
  OTELCTX_ZERO_ID = 18,
} otelctx_result;

/// The work of a thread: trace, span, flags and attributes, ready to be attached.
typedef struct otelctx_context otelctx_context;

/// A copy of what readers see of a thread.
typedef struct otelctx_decoded otelctx_decoded;

/// The name of an attribute of contexts, such as "http.route". It is valid until the process ends.
typedef struct otelctx_key otelctx_key;

/// A process context: the attributes of an OpenTelemetry resource, and attributes of the process
/// context itself. It does nothing until it is published, and can be changed and published again.
/// If one of its functions fails, otelctx_publish() fails, too, and says why: others need no check.
typedef struct otelctx_process otelctx_process;

/// A publication. It lasts until otelctx_unpublish(), or until the process ends.
typedef struct otelctx_published otelctx_published;

/// A reference to an immutable context that any thread may attach, also several at once.
typedef struct otelctx_shared otelctx_shared;

/// A value of an attribute of the process context. Functions that take a value into something else
/// free it, also when they fail.
typedef struct otelctx_value otelctx_value;

/// Code and text of a call's result. Functions that take one write it in each call, if not null.
typedef struct otelctx_error {
  /// The code.
  enum otelctx_result code;
  /// The failure and its fix, in one line; empty after success. Text that is longer is cut.
  char message[1020];
} otelctx_error;

/// A function that changes a process context, for otelctx_modify().
typedef void (*otelctx_change)(struct otelctx_process *process, void *data);

/// Keeps a shared context attached to a thread, from otelctx_shared_attach() to
/// otelctx_scope_detach(). It is the caller's memory, for example on the stack; its content is
/// private, and it may be moved.
typedef struct otelctx_scope {
  /// Private.
  uint64_t opaque[4];
} otelctx_scope;

/// A key and its value.
typedef struct otelctx_attribute {
  /// A key from otelctx_key_get().
  const struct otelctx_key *key;
  /// The value, in UTF-8.
  const char *value;
  /// The value's length in bytes, or OTELCTX_NUL_TERMINATED.
  size_t length;
} otelctx_attribute;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Describes a code in a sentence, for functions that give no message. The text is static; null for
/// a number that is no code.
const char *otelctx_describe(int32_t code);

/// Checks that other processes can find this process's thread contexts: that the variable
/// `otel_thread_ctx_v1` of this library is in the dynamic symbol table of its module. The message
/// says how to fix it. It reads only this process's own memory: call it once, at start-up. Returns
/// OTELCTX_OK or OTELCTX_NOT_EXPORTED.
enum otelctx_result otelctx_is_exported(struct otelctx_error *error);

/// Searches for a second process context in this process, which another publisher has published after
/// this library: readers use one of the two, and may give attributes of one the names of the other.
/// Reads the mappings of the process, which takes 0.1 ms for 600 of them: call it once, after start-up.
/// Returns OTELCTX_OK if there is none, else OTELCTX_FOREIGN; the message names its mapping.
enum otelctx_result otelctx_find_other(struct otelctx_error *error);

/// Returns the version of this library, for example "0.1.0". The text is static.
const char *otelctx_version(void);

/// Creates a string of UTF-8. Null if it is not.
struct otelctx_value *otelctx_value_string(const char *string, size_t length);

/// Creates a truth value.
struct otelctx_value *otelctx_value_bool(bool value);

/// Creates an integer.
struct otelctx_value *otelctx_value_int(int64_t value);

/// Creates a floating-point number.
struct otelctx_value *otelctx_value_double(double value);

/// Creates a value of uninterpreted bytes. Null if the address is null and the length is not 0.
struct otelctx_value *otelctx_value_bytes(const uint8_t *address, size_t length);

/// Creates an empty array.
struct otelctx_value *otelctx_value_array(void);

/// Creates an empty map.
struct otelctx_value *otelctx_value_map(void);

/// Appends a value to an array, which takes it over. OTELCTX_INVALID_ARGUMENT if the first value is
/// no array, or if they are the same.
enum otelctx_result otelctx_value_push(struct otelctx_value *array, struct otelctx_value *value);

/// Sets a value of a map, which takes it over. OTELCTX_INVALID_ARGUMENT if the first value is no
/// map, or if they are the same.
enum otelctx_result otelctx_value_set(struct otelctx_value *map,
                                      const char *key,
                                      struct otelctx_value *value);

/// Frees a value that nothing has taken over.
void otelctx_value_free(struct otelctx_value *value);

/// Creates a process context without attributes.
struct otelctx_process *otelctx_process_new(void);

/// Creates a process context with what can be detected: OTELCTX_DETECT_DEFAULT, or a sum of the
/// other constants. Unknown bits are ignored. Attributes that are set take precedence over detected
/// ones. It reads the environment: no other thread may change it at the same time.
struct otelctx_process *otelctx_process_detect(uint32_t detect);

/// Tells whether OTEL_RESOURCE_ATTRIBUTES was ignored because it is malformed:
/// OTELCTX_MALFORMED_ENVIRONMENT, else OTELCTX_OK.
enum otelctx_result otelctx_process_check_environment(const struct otelctx_process *process,
                                                      struct otelctx_error *error);

/// Sets `service.name`.
enum otelctx_result otelctx_process_service_name(struct otelctx_process *process, const char *name);

/// Sets an attribute of the resource, or replaces it, and takes the value over.
enum otelctx_result otelctx_process_set(struct otelctx_process *process,
                                        const char *key,
                                        struct otelctx_value *value);

/// Sets an attribute of the resource to a string.
enum otelctx_result otelctx_process_set_string(struct otelctx_process *process,
                                               const char *key,
                                               const char *value);

/// Sets an attribute of the resource to true or false.
enum otelctx_result otelctx_process_set_bool(struct otelctx_process *process,
                                             const char *key,
                                             bool value);

/// Sets an attribute of the resource to an integer.
enum otelctx_result otelctx_process_set_int(struct otelctx_process *process,
                                            const char *key,
                                            int64_t value);

/// Sets an attribute of the resource to a floating-point number.
enum otelctx_result otelctx_process_set_double(struct otelctx_process *process,
                                               const char *key,
                                               double value);

/// Sets an attribute of the resource to uninterpreted bytes.
enum otelctx_result otelctx_process_set_bytes(struct otelctx_process *process,
                                              const char *key,
                                              const uint8_t *address,
                                              size_t length);

/// Removes an attribute of the resource, if it is there.
enum otelctx_result otelctx_process_remove(struct otelctx_process *process, const char *key);

/// Sets an attribute of the process context itself, which is not part of the resource, and takes
/// the value over. Names that start with `threadlocal.` are reserved for this library.
enum otelctx_result otelctx_process_set_context_attribute(struct otelctx_process *process,
                                                          const char *key,
                                                          struct otelctx_value *value);

/// Sets an attribute that belongs to the schema of thread contexts, for publishers of schemas that
/// this library does not know, and takes the value over. The name starts with `threadlocal.`.
enum otelctx_result otelctx_process_set_schema_attribute(struct otelctx_process *process,
                                                         const char *key,
                                                         struct otelctx_value *value);

/// Sets the announced schema of thread contexts: "tlsdesc_v1_dev", the default, which current
/// readers support, "tls_v1", or another one.
enum otelctx_result otelctx_process_schema(struct otelctx_process *process, const char *schema);

/// Sets the maximum encoded size in bytes; readers may reject more than the default of 65,536.
enum otelctx_result otelctx_process_max_size(struct otelctx_process *process, size_t size);

/// Frees a process context. What was published stays published. In a callback of otelctx_modify(),
/// it does nothing to the callback's context.
void otelctx_process_free(struct otelctx_process *process);

/// Publishes a process context, so that other processes can find it. The process has one: if
/// another copy of otelctx has published one (a Rust program, the Python or the Node.js package),
/// that one is withdrawn, and contexts keep their meaning.
///
/// Null if it fails; nothing is published then. `error` tells why: OTELCTX_ALREADY_PUBLISHED,
/// OTELCTX_FOREIGN, OTELCTX_REJECTED, OTELCTX_SYSTEM, or the failure of an earlier call that set an
/// attribute. A forked child may publish its own context with this function or otelctx_replace().
struct otelctx_published *otelctx_publish(const struct otelctx_process *process,
                                          struct otelctx_error *error);

/// Replaces the published context, including changes by otelctx_modify(). Readers see the old one,
/// the new one, or that it is being updated. If it fails, the old one stays. In a forked child,
/// publishes the context as the child's own.
///
/// OTELCTX_NOT_PUBLISHED if another copy of otelctx has taken over; publish again to take it back.
/// OTELCTX_BUSY if another thread uses the publication.
enum otelctx_result otelctx_replace(struct otelctx_published *published,
                                    const struct otelctx_process *process,
                                    struct otelctx_error *error);

/// Changes the context that this library has published in this process, without needing the
/// publication: for a library that adds to the application's context. `change` gets a copy of it
/// and `data`; it may be called again if another thread changes the context at the same time. No
/// lock is held meanwhile. It must return: no exception and no longjmp may leave it. If it fails,
/// also because a function that `change` called has failed, the context is unchanged.
/// OTELCTX_NOT_PUBLISHED in a forked child that has no context.
enum otelctx_result otelctx_modify(otelctx_change change, void *data, struct otelctx_error *error);

/// Publishes the context again in every later child of this process, and in their children, with
/// the child's `process.pid` and a random `service.instance.id`, if they were detected: for servers
/// with forked workers. When fork() returns, the child's context is published: handlers run in the
/// thread that forks, and make only system calls in the child. posix_spawn(), vfork() and clone()
/// do not run them. Programs that call fork() in signal handlers cannot use this.
/// OTELCTX_NOT_PUBLISHED if this publication is not in effect any more.
enum otelctx_result otelctx_republish_after_fork(struct otelctx_published *published,
                                                 struct otelctx_error *error);

/// Withdraws the process context, and frees the publication, also if it fails. If the context is
/// not this publication's any more, or in a forked child without one, it only frees the
/// publication.
enum otelctx_result otelctx_unpublish(struct otelctx_published *published,
                                      struct otelctx_error *error);

/// Returns the key with this name, and registers it if it is new. A process can have 256; they are
/// published as long as it runs, so do not make names from the content of requests. If a process
/// context is published, a new key updates it, which takes a few microseconds. Contexts leave out
/// the attribute until a process context with the key is published. Null if it is refused.
const struct otelctx_key *otelctx_key_get(const char *name_, struct otelctx_error *error);

/// Returns the index of the key in records, for programs that write records themselves. It does
/// not change as long as the process runs. -1 until a process context with the key is published.
int32_t otelctx_key_index(const struct otelctx_key *key);

/// Creates a context with these IDs and W3C trace flags (OTELCTX_SAMPLED), without attributes. Null
/// if an ID is refused, and while the calling thread frees its thread-local data.
struct otelctx_context *otelctx_context_new(const uint8_t *trace_id,
                                            const uint8_t *span_id,
                                            uint8_t flags);

/// Frees a context, and detaches it before if it is attached. A context whose thread has ended may
/// be freed by any thread; otherwise another thread gets OTELCTX_WRONG_THREAD and nothing is freed.
enum otelctx_result otelctx_context_free(struct otelctx_context *context);

/// Makes the context what the calling thread is working on, until it is detached. Contexts may be
/// detached in any order: the last one that is still attached stays in effect.
/// OTELCTX_ATTACHED if it is attached already.
enum otelctx_result otelctx_context_attach(struct otelctx_context *context);

/// Detaches the context: restores what was attached before it, or removes it from below others.
/// OTELCTX_NOT_ATTACHED if it is not attached, also because otelctx_thread_set() or
/// otelctx_swap_current() has replaced it.
enum otelctx_result otelctx_context_detach(struct otelctx_context *context);

/// Appends an attribute. A value is cut to 255 bytes, at a character boundary. A context has room
/// for 612 bytes of attributes, each of which takes the length of its value plus 2. While the
/// context is attached, readers see the whole attribute or nothing of it; it then has only the
/// space that it had before, see otelctx_context_reserve(). The last value of a key counts.
/// OTELCTX_TRUNCATED if the value was cut or the attribute left out.
enum otelctx_result otelctx_context_append(struct otelctx_context *context,
                                           const struct otelctx_key *key,
                                           const char *value,
                                           size_t length);

/// Makes room for this many bytes of attributes in total, at most 612, for adding some while the
/// context is attached. OTELCTX_ATTACHED if it is attached already.
enum otelctx_result otelctx_context_reserve(struct otelctx_context *context, size_t size);

/// Removes an attribute, if it is there, for a context that was copied from another one and gets
/// another value. OTELCTX_ATTACHED if the context is attached.
enum otelctx_result otelctx_context_remove(struct otelctx_context *context,
                                           const struct otelctx_key *key);

/// Replaces IDs and flags, and keeps the attributes. OTELCTX_ATTACHED if the context is attached.
enum otelctx_result otelctx_context_set_ids(struct otelctx_context *context,
                                            const uint8_t *trace_id,
                                            const uint8_t *span_id,
                                            uint8_t flags);

/// Returns the size of the attributes in bytes: a mark for otelctx_context_shrink_to().
size_t otelctx_context_attributes_size(const struct otelctx_context *context);

/// Removes the attributes that were added since their size was this many bytes; one that extends
/// over it is removed, too. The context may be attached.
enum otelctx_result otelctx_context_shrink_to(struct otelctx_context *context, size_t size);

/// Returns whether a value was cut or an attribute left out since the context was created.
bool otelctx_context_is_truncated(const struct otelctx_context *context);

/// Creates a context with these IDs and flags and another one's attributes, as for a child span.
struct otelctx_context *otelctx_context_copy(const struct otelctx_context *context,
                                             const uint8_t *trace_id,
                                             const uint8_t *span_id,
                                             uint8_t flags);

/// Creates an immutable copy that any thread may attach. The context stays.
struct otelctx_shared *otelctx_context_share(const struct otelctx_context *context);

/// Adds a reference to a shared context, to be released as well.
struct otelctx_shared *otelctx_shared_retain(const struct otelctx_shared *shared);

/// Releases a reference. The context lives until no reference and no thread has it.
void otelctx_shared_release(struct otelctx_shared *shared);

/// Makes a shared context what the calling thread is working on, until the scope is detached, which
/// restores what was attached before. Scopes may be detached in any order. The scope's content
/// before the call does not matter. It needs no reference: the thread keeps the context alive.
enum otelctx_result otelctx_shared_attach(const struct otelctx_shared *shared,
                                          struct otelctx_scope *scope);

/// Ends a scope: detaches its context and restores what was attached before, or removes it from
/// below others. OTELCTX_NOT_ATTACHED if it has ended already.
enum otelctx_result otelctx_scope_detach(struct otelctx_scope *scope);

/// Appends an attribute that was not known when the shared context was made. It is visible on this
/// thread until the scope is detached; the shared context does not change. A value is cut to 255
/// bytes. OTELCTX_TRUNCATED if readers cannot see the attribute: another context is attached over
/// this one, there is no room, or the key is not published.
enum otelctx_result otelctx_scope_append(struct otelctx_scope *scope,
                                         const struct otelctx_key *key,
                                         const char *value,
                                         size_t length);

/// Creates a context of the calling thread with these IDs and flags and the attributes of a shared
/// one, for example for a child span. Null while the thread frees its thread-local data.
struct otelctx_context *otelctx_shared_copy(const struct otelctx_shared *shared,
                                            const uint8_t *trace_id,
                                            const uint8_t *span_id,
                                            uint8_t flags);

/// Returns the 16 bytes of the trace ID, as long as a reference is held; zeroes for none.
const uint8_t *otelctx_shared_trace_id(const struct otelctx_shared *shared);

/// Returns the 8 bytes of the span ID, as long as a reference is held; zeroes for none.
const uint8_t *otelctx_shared_span_id(const struct otelctx_shared *shared);

/// Returns the W3C trace flags.
uint8_t otelctx_shared_flags(const struct otelctx_shared *shared);

/// Returns whether a value was cut or an attribute left out when the context was made.
bool otelctx_shared_is_truncated(const struct otelctx_shared *shared);

/// Returns the record of a shared context: its bytes in the layout of OTEP 4947, as long as a
/// reference is held, for language runtimes that store the address. They must not be changed.
const uint8_t *otelctx_shared_record(const struct otelctx_shared *shared);

/// Rewrites the calling thread's own context with these IDs, flags and attributes, and attaches it:
/// for programs that know when a thread switches to other work but have no scope. Readers see all
/// of it or nothing. Without attributes, `attributes` may be null. If a context or a scope is
/// attached, detaching that restores nothing then. An ID of zero detaches the context.
///
/// OTELCTX_TRUNCATED if a value was cut or an attribute left out; the rest is attached.
enum otelctx_result otelctx_thread_set(const uint8_t *trace_id,
                                       const uint8_t *span_id,
                                       uint8_t flags,
                                       const struct otelctx_attribute *attributes,
                                       size_t count);

/// Appends an attribute to the calling thread's own context. Readers see the whole attribute or
/// nothing of it. OTELCTX_TRUNCATED if the value was cut or the attribute left out.
enum otelctx_result otelctx_thread_append(const struct otelctx_key *key,
                                          const char *value,
                                          size_t length);

/// Detaches the calling thread's own context if it is attached.
void otelctx_thread_detach(void);

/// Returns the size of the own context's attributes in bytes: a mark for
/// otelctx_thread_shrink_to().
size_t otelctx_thread_attributes_size(void);

/// Removes the attributes that were added since their size was this many bytes; one that extends
/// over it is removed, too.
void otelctx_thread_shrink_to(size_t size);

/// Returns whether a value was cut or an attribute left out since the thread's own context was set.
bool otelctx_thread_is_truncated(void);

/// Returns the record of the calling thread's own context: 640 bytes in the layout of OTEP 4947,
/// for language runtimes that write it themselves: write 0 to the `valid` byte, then IDs, flags,
/// size and attributes, then 1 to the `valid` byte, then the address to the slot, with compiler
/// fences in between. Only the thread itself may write, within the 640 bytes, until it ends. Null
/// once the thread has freed its thread-local data.
uint8_t *otelctx_thread_record(void);

/// Returns the address of the calling thread's `otel_thread_ctx_v1`, in which readers find the
/// pointer to its record, for language runtimes that write it themselves: null, or the address of a
/// record that stays valid memory as long as it is there. It does not change until the thread ends.
void **otelctx_thread_slot(void);

/// Makes a shared context what the calling thread is working on, and returns the previous one set
/// by this function, or null: for frameworks that set what is current without a scope and in any
/// order. Null detaches. The call takes the passed reference over, the caller the returned one.
struct otelctx_shared *otelctx_swap_current(struct otelctx_shared *shared);

/// Returns a new reference to the context that otelctx_swap_current() made current, without what
/// otelctx_append_current() added; null if there is none. For frameworks that derive contexts.
struct otelctx_shared *otelctx_shared_current(void);

/// Appends an attribute to what the calling thread is working on, for facts that become known
/// later. A context of the thread is changed; for a shared one, the attribute is visible on this
/// thread until it is detached. A value is cut to 255 bytes. OTELCTX_TRUNCATED if readers cannot
/// see the attribute: no context of this library is attached, there is no room, or the key is not
/// published.
enum otelctx_result otelctx_append_current(const struct otelctx_key *key,
                                           const char *value,
                                           size_t length);

/// Copies what a reader sees of the calling thread, with the names of this library's keys, for
/// tests. Null if nothing is attached.
struct otelctx_decoded *otelctx_visible_to_readers(void);

/// Returns the 16 bytes of the trace ID, until the copy is freed.
const uint8_t *otelctx_decoded_trace_id(const struct otelctx_decoded *decoded);

/// Returns the 8 bytes of the span ID, until the copy is freed.
const uint8_t *otelctx_decoded_span_id(const struct otelctx_decoded *decoded);

/// Returns the W3C trace flags.
uint8_t otelctx_decoded_flags(const struct otelctx_decoded *decoded);

/// Returns the value of an attribute, not terminated, and its length in bytes, until the copy is
/// freed. Null if it has no such attribute.
const char *otelctx_decoded_attribute(const struct otelctx_decoded *decoded,
                                      const char *name,
                                      size_t *length);

/// Returns the value of an attribute by its position, from 0 on, and writes its name and lengths;
/// both are not terminated, and valid until the copy is freed. The pointers for the results may be
/// null. Null, and nothing is written, for a position past the last one.
const char *otelctx_decoded_attribute_at(const struct otelctx_decoded *decoded,
                                         size_t index,
                                         const char **name,
                                         size_t *name_length,
                                         size_t *length);

/// Returns the number of attributes.
size_t otelctx_decoded_attributes(const struct otelctx_decoded *decoded);

/// Frees a copy.
void otelctx_decoded_free(struct otelctx_decoded *decoded);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OTELCTX_H */
