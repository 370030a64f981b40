/*
 * Publishes the active spans of opentelemetry-cpp, from version 1.0 on, in two lines, before the
 * first span. Readers read no threads of a process that publishes no process context:
 *
 *     auto published = otelctx::Process::detect().with_service_name("shop").publish();
 *     opentelemetry::context::RuntimeContext::SetRuntimeContextStorage(otelctx::storage());
 *
 * The API does not tell a span's name and attributes. A context can have attributes for readers:
 *
 *     SetRuntimeContextStorage(otelctx::storage({"http.route", "tenant.id"}));
 *     ...
 *     auto token = RuntimeContext::Attach(
 *         otelctx::with_attribute(RuntimeContext::GetCurrent(), "http.route", "/cart"));
 *
 * Spans that become active in it show them, too. Entries of OpenTelemetry's baggage with these names are
 * shown as well. otelctx::append_current() adds an attribute until another context is attached or detached.
 */

#ifndef OTELCTX_OPENTELEMETRY_HPP
#define OTELCTX_OPENTELEMETRY_HPP

#include "otelctx.hpp"

#include <opentelemetry/baggage/baggage.h>
#include <opentelemetry/baggage/baggage_context.h>
#include <opentelemetry/context/context.h>
#include <opentelemetry/context/runtime_context.h>
#include <opentelemetry/nostd/shared_ptr.h>
#include <opentelemetry/nostd/string_view.h>
#include <opentelemetry/trace/context.h>
#include <opentelemetry/trace/span.h>
#include <opentelemetry/trace/span_context.h>
#include <opentelemetry/trace/span_metadata.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace otelctx {
#ifndef __cpp_exceptions
inline namespace without_exceptions {
#endif

namespace detail {

/** The key of a context's attributes. They are a baggage, but not the one that propagators send. */
inline constexpr char attributes_key[] = "otelctx.attributes";

using Attributes = opentelemetry::nostd::shared_ptr<opentelemetry::baggage::Baggage>;

inline Attributes attributes_of(const opentelemetry::context::Context &context) noexcept {
  const auto value = context.GetValue(attributes_key);
  const Attributes *attributes = opentelemetry::nostd::get_if<Attributes>(&value);
  return attributes == nullptr ? Attributes() : *attributes;
}

}  // namespace detail

/**
 * Returns a context with another attribute for readers, if storage() was given its name. Contexts that are derived
 * from it, such as those of active spans, have it, too. It is not sent to other processes.
 */
inline opentelemetry::context::Context with_attribute(opentelemetry::context::Context context,
                                                      std::string_view name, std::string_view value) {
  auto attributes = detail::attributes_of(context);
  if (attributes == nullptr) attributes = detail::Attributes(new opentelemetry::baggage::Baggage());
  const opentelemetry::nostd::string_view key(name.data(), name.size());
  return context.SetValue(detail::attributes_key,
                          attributes->Set(key, opentelemetry::nostd::string_view(value.data(), value.size())));
}

/** Keeps contexts where another storage keeps them, and shows the active span to readers. */
class Storage : public opentelemetry::context::RuntimeContextStorage {
 public:
  using Inner = opentelemetry::context::RuntimeContextStorage;

  /** Throws otelctx::Error if a name cannot be registered, or aborts without exceptions. */
  Storage(std::unique_ptr<Inner> inner, const std::vector<std::string> &attributes)
      : inner_(std::move(inner)) {
    for (const std::string &name : attributes) attributes_.emplace_back(name, Key(name.c_str()));
  }

  opentelemetry::context::Context GetCurrent() noexcept override { return inner_->GetCurrent(); }

  opentelemetry::nostd::unique_ptr<opentelemetry::context::Token> Attach(
      const opentelemetry::context::Context &context) noexcept override {
    auto token = inner_->Attach(context);
    show(context);
    return token;
  }

  bool Detach(opentelemetry::context::Token &token) noexcept override {
    const bool detached = inner_->Detach(token);
    // It also detaches what was attached later: only the storage knows what is current now.
    if (detached) show(inner_->GetCurrent());
    return detached;
  }

 private:
  using Span = opentelemetry::nostd::shared_ptr<opentelemetry::trace::Span>;

  void show(const opentelemetry::context::Context &context) const noexcept {
    const auto value = context.GetValue(opentelemetry::trace::kSpanKey);
    const Span *span = opentelemetry::nostd::get_if<Span>(&value);
    if (span == nullptr || *span == nullptr) return otelctx_thread_detach();
    const opentelemetry::trace::SpanContext active = (*span)->GetContext();
    if (!active.IsValid()) return otelctx_thread_detach();
    otelctx_thread_set(active.trace_id().Id().data(), active.span_id().Id().data(),
                       active.trace_flags().flags(), nullptr, 0);
    if (!attributes_.empty()) show_attributes(context);
  }

  void show_attributes(const opentelemetry::context::Context &context) const noexcept {
    const auto attributes = detail::attributes_of(context);
    const auto baggage = opentelemetry::baggage::GetBaggage(context);
    for (const auto &[name, key] : attributes_) {
      std::string value;
      const bool has_own = attributes != nullptr && attributes->GetValue(name, value);
      if (has_own || (baggage != nullptr && baggage->GetValue(name, value))) thread::append(key, value);
    }
  }

  std::unique_ptr<Inner> inner_;
  std::vector<std::pair<std::string, Key>> attributes_;
};

/**
 * Returns the storage for RuntimeContext::SetRuntimeContextStorage(), around the default one. The names are those of
 * attributes to show: few, and with few values.
 */
inline opentelemetry::nostd::shared_ptr<opentelemetry::context::RuntimeContextStorage> storage(
    const std::vector<std::string> &attributes = {}) {
  std::unique_ptr<Storage::Inner> inner(opentelemetry::context::GetDefaultStorage());
  return opentelemetry::nostd::shared_ptr<Storage::Inner>(new Storage(std::move(inner), attributes));
}

#ifndef __cpp_exceptions
}  // namespace without_exceptions
#endif
}  // namespace otelctx

#endif
