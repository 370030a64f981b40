/*
 * otelctx for C++17: otelctx.h with scopes. Header-only; link the same library.
 *
 *     auto published = otelctx::Process::detect().with_service_name("shop").publish();
 *     const otelctx::Key route("http.route");
 *
 *     otelctx::Context context(trace_id, span_id, OTELCTX_SAMPLED);
 *     context.append(route, "/cart");
 *     {
 *       auto scope = context.attach();
 *       ...  // readers see the context on this thread
 *     }
 *
 * Functions for set-up throw otelctx::Error; in code that is compiled with -fno-exceptions, they print
 * the reason and abort, so use those of otelctx.h where they may fail. Functions for each request do not
 * throw, and return a code. Threads, signal handlers, fork: the same rules as in otelctx.h.
 */

#ifndef OTELCTX_HPP
#define OTELCTX_HPP

#include "otelctx.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace otelctx {
#ifndef __cpp_exceptions
// Other code of the same program may be compiled with exceptions: each has its own functions.
inline namespace without_exceptions {
#endif

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

/** Thrown by functions for set-up. */
class Error : public std::runtime_error {
 public:
  explicit Error(const otelctx_error &error) : std::runtime_error(error.message), code_(error.code) {}
  explicit Error(otelctx_result code) : std::runtime_error(otelctx_describe(code)), code_(code) {}
  otelctx_result code() const noexcept { return code_; }

 private:
  otelctx_result code_;
};

namespace detail {

[[noreturn]] inline void fail(const Error &error) {
#ifdef __cpp_exceptions
  throw error;
#else
  std::fprintf(stderr, "otelctx: %s\n", error.what());
  std::abort();
#endif
}

/** Makes a call, and returns what it throws, if anything. */
template <typename Call>
std::exception_ptr thrown_by(Call call) noexcept {
#ifdef __cpp_exceptions
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
#else
  call();
#endif
  return nullptr;
}

inline void check(otelctx_result code, const otelctx_error &error) {
  if (code != OTELCTX_OK) fail(Error(error));
}

inline void check(otelctx_result code) {
  if (code != OTELCTX_OK) fail(Error(code));
}

/** Returns the ID of these bytes; zeroes for null. */
template <typename Id>
Id id(const uint8_t *bytes) noexcept {
  Id id{};
  for (size_t i = 0; bytes != nullptr && i < id.size(); i++) id[i] = bytes[i];
  return id;
}

/** A pointer that one object owns. */
template <typename T, auto Free>
class Owned {
 public:
  explicit Owned(T *pointer = nullptr) noexcept : pointer_(pointer) {}
  Owned(Owned &&other) noexcept : pointer_(other.release()) {}
  Owned &operator=(Owned &&other) noexcept {
    if (this != &other) {
      reset();
      pointer_ = other.release();
    }
    return *this;
  }
  Owned(const Owned &) = delete;
  Owned &operator=(const Owned &) = delete;
  ~Owned() { reset(); }
  T *get() const noexcept { return pointer_; }
  T *release() noexcept { return std::exchange(pointer_, nullptr); }

 private:
  void reset() noexcept {
    if (pointer_ != nullptr) Free(pointer_);
  }
  T *pointer_;
};

}  // namespace detail

/** Returns whether other processes can find this process's thread contexts. If not, `why` says how to fix it. */
inline bool is_exported(std::string *why = nullptr) {
  otelctx_error error;
  const bool exported = otelctx_is_exported(&error) == OTELCTX_OK;
  if (why != nullptr) *why = error.message;
  return exported;
}

/** Returns whether another publisher in this process has published a second process context; `which` names it. */
inline bool has_other(std::string *which = nullptr) {
  otelctx_error error;
  const bool found = otelctx_find_other(&error) == OTELCTX_FOREIGN;
  if (which != nullptr) *which = error.message;
  return found;
}

/** Returns the version of the library, such as "0.1.0". */
inline const char *version() noexcept { return otelctx_version(); }

/** Withdraws the process context, unless records may refer to its keys; see otelctx_withdraw(). */
inline bool withdraw() noexcept { return otelctx_withdraw(); }

/** The name of an attribute of records. Make it a static. */
class Key {
 public:
  explicit Key(const char *name) {
    otelctx_error error;
    key_ = otelctx_key_get(name, &error);
    if (key_ == nullptr) detail::fail(Error(error));
  }
  const otelctx_key *get() const noexcept { return key_; }
  /** Returns the index in records; none until a process context with the key is published. */
  std::optional<uint8_t> index() const noexcept {
    const int32_t index = otelctx_key_index(key_);
    if (index < 0) return std::nullopt;
    return static_cast<uint8_t>(index);
  }

 private:
  const otelctx_key *key_;
};

/** A value of an attribute of the process context. */
class Value {
 public:
  Value(std::string_view text) : Value(otelctx_value_string(text.data(), text.size())) {}
  Value(const std::string &text) : Value(std::string_view(text)) {}
  Value(const char *text) : Value(std::string_view(text)) {}
  Value(bool value) : Value(otelctx_value_bool(value)) {}
  /** An integer; one above INT64_MAX is refused. */
  template <typename Int, std::enable_if_t<std::is_integral_v<Int> && !std::is_same_v<Int, bool>, int> = 0>
  Value(Int value) : Value(otelctx_value_int(signed_of(value))) {}
  Value(double value) : Value(otelctx_value_double(value)) {}

  static Value bytes(const void *address, size_t size) {
    return Value(otelctx_value_bytes(static_cast<const uint8_t *>(address), size));
  }
  template <typename Items>
  static Value array(Items &&items) {
    Value array(otelctx_value_array());
    for (const auto &item : items) array.push(Value(item));
    return array;
  }
  static Value array() { return Value(otelctx_value_array()); }
  static Value map() { return Value(otelctx_value_map()); }

  /** Appends to an array. */
  Value &push(Value value) & {
    detail::check(otelctx_value_push(value_.get(), value.release()));
    return *this;
  }
  Value &&push(Value value) && { return std::move(push(std::move(value))); }
  /** Sets an entry of a map. */
  Value &set(const char *key, Value value) & {
    detail::check(otelctx_value_set(value_.get(), key, value.release()));
    return *this;
  }
  Value &&set(const char *key, Value value) && { return std::move(set(key, std::move(value))); }
  otelctx_value *release() noexcept { return value_.release(); }

 private:
  template <typename Int>
  static int64_t signed_of(Int value) {
    if constexpr (std::is_unsigned_v<Int> && sizeof(Int) >= sizeof(int64_t)) {
      if (value > Int{INT64_MAX}) detail::fail(Error(OTELCTX_INVALID_ARGUMENT));
    }
    return static_cast<int64_t>(value);
  }
  explicit Value(otelctx_value *value) : value_(value) {
    if (value == nullptr) detail::fail(Error(OTELCTX_INVALID_UTF8));
  }
  detail::Owned<otelctx_value, otelctx_value_free> value_;
};

class Process;

/** A publication; its destructor withdraws the process context. */
class [[nodiscard]] Published {
 public:
  /** Replaces the published context. */
  void replace(const Process &process);
  /** Publishes the context again in each later forked child. */
  void republish_after_fork() {
    otelctx_error error;
    detail::check(otelctx_republish_after_fork(published_.get(), &error), error);
  }
  /** Withdraws the context now, and reports errors. */
  void unpublish() {
    otelctx_error error;
    detail::check(otelctx_unpublish(published_.release(), &error), error);
  }
  /** Leaves the context published until the process ends. */
  void keep() noexcept { published_.release(); }

 private:
  friend class Process;
  static void free(otelctx_published *published) noexcept { otelctx_unpublish(published, nullptr); }
  explicit Published(otelctx_published *published) noexcept : published_(published) {}
  detail::Owned<otelctx_published, Published::free> published_;
};

/** A process context to publish. */
class Process {
 public:
  /** Creates a process context without attributes. */
  Process() : process_(otelctx_process_new()), own_(process_) {}
  /** Creates one with what can be detected: OTELCTX_DETECT_DEFAULT, or a sum of the other constants. */
  static Process detect(uint32_t detect = OTELCTX_DETECT_DEFAULT) {
    Process process(otelctx_process_detect(detect), true);
    if ((detect & OTELCTX_DETECT_SDK) != 0) process.with_attribute("telemetry.sdk.language", "cpp");
    return process;
  }
  Process &&with_service_name(const std::string &name) && { return std::move(with_service_name(name)); }
  Process &with_service_name(const std::string &name) & { return with_attribute("service.name", name); }
  /** Sets an attribute of the resource. */
  Process &&with_attribute(const char *key, Value value) && {
    return std::move(with_attribute(key, std::move(value)));
  }
  Process &with_attribute(const char *key, Value value) & {
    detail::check(otelctx_process_set(process_, key, value.release()));
    return *this;
  }
  /** Removes an attribute of the resource. */
  Process &without_attribute(const char *key) {
    detail::check(otelctx_process_remove(process_, key));
    return *this;
  }
  /** Sets an attribute of the process context itself. */
  Process &with_context_attribute(const char *key, Value value) {
    detail::check(otelctx_process_set_context_attribute(process_, key, value.release()));
    return *this;
  }
  /** Sets an attribute of another schema of thread contexts; its name starts with `threadlocal.`. */
  Process &with_schema_attribute(const char *key, Value value) {
    detail::check(otelctx_process_set_schema_attribute(process_, key, value.release()));
    return *this;
  }
  /** Sets the announced schema of thread contexts: "tlsdesc_v1_dev" by default, "tls_v1", or another. */
  Process &with_schema(const char *name) {
    detail::check(otelctx_process_schema(process_, name));
    return *this;
  }
  /** Sets the maximum size of the encoded context in bytes. */
  Process &with_max_size(size_t bytes) {
    detail::check(otelctx_process_max_size(process_, bytes));
    return *this;
  }
  /** Returns why OTEL_RESOURCE_ATTRIBUTES was ignored, if it was. */
  std::optional<std::string> malformed_environment() const {
    otelctx_error error;
    if (otelctx_process_check_environment(process_, &error) == OTELCTX_OK) return std::nullopt;
    return error.message;
  }
  Published publish() const {
    otelctx_error error;
    otelctx_published *published = otelctx_publish(process_, &error);
    if (published == nullptr) detail::fail(Error(error));
    return Published(published);
  }
  otelctx_process *get() const noexcept { return process_; }

 private:
  template <typename Change>
  friend void modify(Change change);
  Process(otelctx_process *process, bool own) : process_(process), own_(own ? process : nullptr) {
    if (process == nullptr) detail::fail(Error(OTELCTX_INTERNAL));
  }
  otelctx_process *process_;
  detail::Owned<otelctx_process, otelctx_process_free> own_;
};

inline void Published::replace(const Process &process) {
  otelctx_error error;
  detail::check(otelctx_replace(published_.get(), process.get(), &error), error);
}

/**
 * Changes the context that this library has published, for a library that adds to the application's:
 * `change` gets a Process&. If it throws, the context is unchanged and the exception goes on.
 */
template <typename Change>
void modify(Change change) {
  struct Call {
    Change &change;
    std::exception_ptr thrown;
  } call{change, nullptr};
  otelctx_error error;
  const otelctx_result code = otelctx_modify(
      [](otelctx_process *process, void *data) {
        auto &[apply, thrown] = *static_cast<Call *>(data);
        thrown = detail::thrown_by([process, &apply = apply]() {
          Process borrowed(process, false);
          apply(borrowed);
        });
        // Any failure keeps the context unchanged.
        if (thrown) otelctx_process_set(process, nullptr, nullptr);
      },
      &call, &error);
  if (call.thrown) std::rethrow_exception(call.thrown);
  detail::check(code, error);
}

/** Keeps a Context attached. The context must not be destroyed before it. */
class [[nodiscard]] Attached {
 public:
  /** False if the context was attached already, or belongs to another thread. */
  explicit operator bool() const noexcept { return context_.get() != nullptr; }
  void detach() noexcept { context_ = detail::Owned<otelctx_context, otelctx_context_detach>(); }

 private:
  friend class Context;
  explicit Attached(otelctx_context *context) noexcept : context_(context) {}
  detail::Owned<otelctx_context, otelctx_context_detach> context_;
};

/** Keeps a SharedContext attached. */
class [[nodiscard]] Scope {
 public:
  Scope(Scope &&other) noexcept : scope_(other.scope_), attached_(std::exchange(other.attached_, false)) {}
  Scope &operator=(Scope &&other) noexcept {
    if (this != &other) {
      detach();
      scope_ = other.scope_;
      attached_ = std::exchange(other.attached_, false);
    }
    return *this;
  }
  Scope(const Scope &) = delete;
  Scope &operator=(const Scope &) = delete;
  ~Scope() { detach(); }
  explicit operator bool() const noexcept { return attached_; }
  /** Appends an attribute that is visible until the scope ends. */
  otelctx_result append(const Key &key, std::string_view value) noexcept {
    if (!attached_) return OTELCTX_NOT_ATTACHED;
    return otelctx_scope_append(&scope_, key.get(), value.data(), value.size());
  }
  void detach() noexcept {
    if (std::exchange(attached_, false)) otelctx_scope_detach(&scope_);
  }

 private:
  friend class SharedContext;
  explicit Scope(const otelctx_shared *shared) noexcept
      : attached_(otelctx_shared_attach(shared, &scope_) == OTELCTX_OK) {}
  otelctx_scope scope_;
  bool attached_;
};

class SharedContext;

/** The work of a thread: trace, span, flags and attributes. It belongs to the thread that created it. */
class Context {
 public:
  Context(const TraceId &trace_id, const SpanId &span_id, uint8_t flags = 0)
      : Context(otelctx_context_new(trace_id.data(), span_id.data(), flags), trace_id, span_id) {}
  /** Creates a context without a trace, for attributes alone. */
  Context() : Context(otelctx_context_new(nullptr, nullptr, 0)) {}
  otelctx_result append(const Key &key, std::string_view value) noexcept {
    return otelctx_context_append(get(), key.get(), value.data(), value.size());
  }
  otelctx_result remove(const Key &key) noexcept { return otelctx_context_remove(get(), key.get()); }
  otelctx_result reserve(size_t size) noexcept { return otelctx_context_reserve(get(), size); }
  otelctx_result set_ids(const TraceId &trace_id, const SpanId &span_id, uint8_t flags) noexcept {
    return otelctx_context_set_ids(get(), trace_id.data(), span_id.data(), flags);
  }
  size_t attributes_size() const noexcept { return otelctx_context_attributes_size(get()); }
  otelctx_result shrink_to(size_t size) noexcept { return otelctx_context_shrink_to(get(), size); }
  bool is_truncated() const noexcept { return otelctx_context_is_truncated(get()); }
  /** Attaches it until the result is destroyed. */
  Attached attach() & noexcept {
    return Attached(otelctx_context_attach(get()) == OTELCTX_OK ? get() : nullptr);
  }
  /** A temporary context is destroyed before the result. */
  Attached attach() && = delete;
  /** Returns a copy that any thread may attach. */
  SharedContext share() const;
  /** Returns a context with other IDs and the same attributes. */
  Context copy(const TraceId &trace_id, const SpanId &span_id, uint8_t flags) const {
    return Context(otelctx_context_copy(get(), trace_id.data(), span_id.data(), flags), trace_id, span_id);
  }
  otelctx_context *get() const noexcept { return context_.get(); }

 private:
  friend class SharedContext;
  static void free(otelctx_context *context) noexcept { otelctx_context_free(context); }
  explicit Context(otelctx_context *context) : context_(context) {
    if (context == nullptr) detail::fail(Error(OTELCTX_WRONG_THREAD));
  }
  Context(otelctx_context *context, const TraceId &trace_id, const SpanId &span_id) : context_(context) {
    const bool has_zero = trace_id == TraceId{} || span_id == SpanId{};
    if (context == nullptr) detail::fail(Error(has_zero ? OTELCTX_ZERO_ID : OTELCTX_WRONG_THREAD));
  }
  detail::Owned<otelctx_context, Context::free> context_;
};

/** An immutable context that any thread may attach; copies refer to the same one. May be empty. */
class SharedContext {
 public:
  SharedContext() noexcept = default;
  SharedContext(const SharedContext &other) noexcept : shared_(otelctx_shared_retain(other.get())) {}
  SharedContext(SharedContext &&) noexcept = default;
  SharedContext &operator=(const SharedContext &other) noexcept { return *this = SharedContext(other); }
  SharedContext &operator=(SharedContext &&) noexcept = default;
  explicit operator bool() const noexcept { return get() != nullptr; }
  /** Attaches it to the calling thread until the result is destroyed. */
  Scope attach() const noexcept { return Scope(get()); }
  Context copy(const TraceId &trace_id, const SpanId &span_id, uint8_t flags) const {
    return Context(otelctx_shared_copy(get(), trace_id.data(), span_id.data(), flags), trace_id, span_id);
  }
  /** Returns the trace ID; zeroes for an empty context, or without a trace. */
  TraceId trace_id() const noexcept { return detail::id<TraceId>(otelctx_shared_trace_id(get())); }
  SpanId span_id() const noexcept { return detail::id<SpanId>(otelctx_shared_span_id(get())); }
  uint8_t flags() const noexcept { return otelctx_shared_flags(get()); }
  bool is_truncated() const noexcept { return otelctx_shared_is_truncated(get()); }
  /** Returns the bytes that readers find, in the layout of OTEP 4947. */
  const uint8_t *record() const noexcept { return otelctx_shared_record(get()); }
  otelctx_shared *get() const noexcept { return shared_.get(); }

 private:
  friend class Context;
  friend SharedContext swap_current(SharedContext context) noexcept;
  friend SharedContext shared_current() noexcept;
  explicit SharedContext(otelctx_shared *shared) noexcept : shared_(shared) {}
  detail::Owned<otelctx_shared, otelctx_shared_release> shared_;
};

inline SharedContext Context::share() const { return SharedContext(otelctx_context_share(get())); }

/** Makes a context current without a scope, and returns the previous one. Empty detaches. */
inline SharedContext swap_current(SharedContext context) noexcept {
  return SharedContext(otelctx_swap_current(context.shared_.release()));
}

/** Returns the context that swap_current() made current, without what append_current() added. May be empty. */
inline SharedContext shared_current() noexcept { return SharedContext(otelctx_shared_current()); }

/** Appends an attribute to what the calling thread is working on. */
inline otelctx_result append_current(const Key &key, std::string_view value) noexcept {
  return otelctx_append_current(key.get(), value.data(), value.size());
}

/** The calling thread's own context, rewritten in place. */
namespace thread {

inline otelctx_result set(const TraceId &trace_id, const SpanId &span_id, uint8_t flags,
                          const otelctx_attribute *attributes = nullptr, size_t count = 0) noexcept {
  return otelctx_thread_set(trace_id.data(), span_id.data(), flags, attributes, count);
}
inline otelctx_result append(const Key &key, std::string_view value) noexcept {
  return otelctx_thread_append(key.get(), value.data(), value.size());
}
inline void detach() noexcept { otelctx_thread_detach(); }
/** Returns a mark for shrink_to(), in bytes. */
inline size_t attributes_size() noexcept { return otelctx_thread_attributes_size(); }
inline void shrink_to(size_t size) noexcept { otelctx_thread_shrink_to(size); }
inline bool is_truncated() noexcept { return otelctx_thread_is_truncated(); }
/** Returns the record's 640 bytes, for language runtimes that write them. */
inline uint8_t *record() noexcept { return otelctx_thread_record(); }
/** Returns where readers find the pointer to the record, for language runtimes that write it. */
inline void **slot() noexcept { return otelctx_thread_slot(); }

}  // namespace thread

/** A copy of what readers see of the calling thread, for tests. */
class DecodedContext {
 public:
  static std::optional<DecodedContext> visible_to_readers() {
    otelctx_decoded *decoded = otelctx_visible_to_readers();
    if (decoded == nullptr) return std::nullopt;
    return DecodedContext(decoded);
  }
  TraceId trace_id() const noexcept {
    return detail::id<TraceId>(otelctx_decoded_trace_id(decoded_.get()));
  }
  SpanId span_id() const noexcept {
    return detail::id<SpanId>(otelctx_decoded_span_id(decoded_.get()));
  }
  uint8_t flags() const noexcept { return otelctx_decoded_flags(decoded_.get()); }
  std::optional<std::string> attribute(const char *name) const {
    size_t length = 0;
    const char *value = otelctx_decoded_attribute(decoded_.get(), name, &length);
    if (value == nullptr) return std::nullopt;
    return std::string(value, length);
  }
  /** Returns names and values, in the order of the record. */
  std::vector<std::pair<std::string, std::string>> attributes() const {
    std::vector<std::pair<std::string, std::string>> found;
    const size_t count = otelctx_decoded_attributes(decoded_.get());
    for (size_t i = 0; i < count; i++) {
      const char *name = nullptr;
      size_t name_length = 0, length = 0;
      const char *value = otelctx_decoded_attribute_at(decoded_.get(), i, &name, &name_length, &length);
      found.emplace_back(std::string(name, name_length), std::string(value, length));
    }
    return found;
  }

 private:
  explicit DecodedContext(otelctx_decoded *decoded) noexcept : decoded_(decoded) {}
  detail::Owned<otelctx_decoded, otelctx_decoded_free> decoded_;
};

#ifndef __cpp_exceptions
}  // namespace without_exceptions
#endif
}  // namespace otelctx

#endif
