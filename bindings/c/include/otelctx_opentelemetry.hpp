/*
 * Publishes the active spans of opentelemetry-cpp, from version 1.0 on, in two lines, before the
 * first span. Readers read no threads of a process that publishes no process context:
 *
 *     auto published = otelctx::Process::detect().service_name("shop").publish();
 *     opentelemetry::context::RuntimeContext::SetRuntimeContextStorage(otelctx::storage());
 *
 * With names, the values of these entries of OpenTelemetry's baggage are attributes of each record:
 *
 *     SetRuntimeContextStorage(otelctx::storage({"tenant.id"}));
 *
 * The API does not tell a span's name and attributes. otelctx::add_current() adds one to the record
 * of the active span, until another span becomes active.
 */

#ifndef OTELCTX_OPENTELEMETRY_HPP
#define OTELCTX_OPENTELEMETRY_HPP

#include "otelctx.hpp"

#include <opentelemetry/baggage/baggage_context.h>
#include <opentelemetry/context/runtime_context.h>
#include <opentelemetry/nostd/shared_ptr.h>
#include <opentelemetry/trace/context.h>
#include <opentelemetry/trace/span.h>
#include <opentelemetry/trace/span_context.h>
#include <opentelemetry/trace/span_metadata.h>

#include <memory>
#include <utility>
#include <vector>

namespace otelctx {
#ifndef __cpp_exceptions
inline namespace without_exceptions {
#endif

/** Keeps contexts where another storage keeps them, and shows the active span to readers. */
class Storage : public opentelemetry::context::RuntimeContextStorage {
 public:
  using Inner = opentelemetry::context::RuntimeContextStorage;

  /** Throws otelctx::Error if a name cannot be registered, or aborts without exceptions. */
  Storage(std::unique_ptr<Inner> inner, const std::vector<std::string> &baggage)
      : inner_(std::move(inner)) {
    for (const std::string &name : baggage) baggage_.emplace_back(name, Key(name.c_str()));
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
    if (!baggage_.empty()) show_baggage(context);
  }

  void show_baggage(const opentelemetry::context::Context &context) const noexcept {
    const auto baggage = opentelemetry::baggage::GetBaggage(context);
    if (baggage == nullptr) return;
    for (const auto &[name, key] : baggage_) {
      std::string value;
      if (baggage->GetValue(name, value)) thread::add(key, value);
    }
  }

  std::unique_ptr<Inner> inner_;
  std::vector<std::pair<std::string, Key>> baggage_;
};

/** The storage for RuntimeContext::SetRuntimeContextStorage(), around the default one. */
inline opentelemetry::nostd::shared_ptr<opentelemetry::context::RuntimeContextStorage> storage(
    const std::vector<std::string> &baggage = {}) {
  std::unique_ptr<Storage::Inner> inner(opentelemetry::context::GetDefaultStorage());
  return opentelemetry::nostd::shared_ptr<Storage::Inner>(new Storage(std::move(inner), baggage));
}

#ifndef __cpp_exceptions
}  // namespace without_exceptions
#endif
}  // namespace otelctx

#endif
