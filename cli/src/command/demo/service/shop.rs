//! The shop's requests: their cost and their contexts.

use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use otelctx::{Context, Key, SharedContext, SpanId, TraceFlags, TraceId, thread_context};

use super::executor::Executor;

static ROUTE: Key = Key::new("http.route");
static METHOD: Key = Key::new("http.request.method");
static STEP: Key = Key::new("code.function.name");

/// Between half and one and a half times `milliseconds`, so that requests differ.
fn about(milliseconds: f64) -> Duration {
    Duration::from_secs_f64(milliseconds * (0.5 + fastrand::f64()) / 1000.0)
}

fn trace_id() -> TraceId {
    TraceId::from_bytes(fastrand::u128(1..).to_be_bytes())
}

fn span_id() -> SpanId {
    SpanId::from_bytes(fastrand::u64(1..).to_be_bytes())
}

/// A customer: views the cart, and sometimes buys.
pub(super) async fn client(executor: Arc<Executor>) {
    loop {
        executor.sleep(about(15.0)).await;
        let trace = trace_id();
        if fastrand::u8(..) < 80 {
            let root = root(trace, "POST", "/checkout");
            root.in_scope(checkout(&executor, trace)).await;
        } else {
            let root = root(trace, "GET", "/cart");
            root.in_scope(cart(&executor, trace)).await;
        }
    }
}

/// The context of a request's first span. It goes where the task goes, from thread to thread.
fn root(trace: TraceId, method: &str, route: &str) -> SharedContext {
    Context::new(trace, span_id())
        .expect("an ID that is not zero")
        .with_sampled(true)
        .with_attribute(&METHOD, method)
        .with_attribute(&ROUTE, route)
        .share()
}

fn step(trace: TraceId, route: &str, name: &str) -> Context {
    Context::new(trace, span_id())
        .expect("an ID that is not zero")
        .with_sampled(true)
        .with_attribute(&ROUTE, route)
        .with_attribute(&STEP, name)
}

async fn checkout(executor: &Arc<Executor>, trace: TraceId) {
    compute(about(3.0));
    // Waits for the stock database. Another thread may continue the task afterwards.
    let reserve = step(trace, "/checkout", "reserve_stock").share();
    reserve.in_scope(executor.sleep(about(4.0))).await;
    {
        let mut pay = step(trace, "/checkout", "sign_payment");
        let _paying = pay.attach();
        compute(about(8.0));
    }
    compute(about(1.0));
}

async fn cart(executor: &Arc<Executor>, trace: TraceId) {
    compute(about(0.8));
    let load = step(trace, "/cart", "load_items").share();
    load.in_scope(executor.sleep(about(3.0))).await;
    compute(about(1.2));
}

/// Answers health checks on a thread of its own, whose one context is rewritten for each.
pub(super) fn answer_health_checks() {
    loop {
        std::thread::sleep(about(5.0));
        thread_context()
            .set_with(trace_id(), span_id(), TraceFlags::SAMPLED, |attributes| {
                attributes.append(&METHOD, "GET");
                attributes.append(&ROUTE, "/health");
            })
            .expect("an ID that is not zero");
        compute(about(0.2));
        // Waits for a response: the context stays attached, but the thread does not run.
        let before = thread_context().attributes_size();
        thread_context().append(&STEP, "ping_database");
        std::thread::sleep(about(1.0));
        thread_context().shrink_to(before);
        compute(about(0.1));
        thread_context().detach();
    }
}

/// Keeps a CPU busy for this long.
fn compute(duration: Duration) {
    let Some(until) = cpu_time().map(|now| now + duration) else {
        return;
    };
    let mut number = fastrand::u64(..);
    while cpu_time().is_some_and(|now| now < until) {
        // Long enough to make the cost of reading the clock negligible.
        for _ in 0..10_000 {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005));
        }
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Option<Duration> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok()?;
    Some(time.into())
}
