//! Frames of functions, from the names that runtimes announce.

use otelctx_sample::{FrameKind, NamedFrame};

/// Splits a name as its runtime writes it.
pub(super) fn frame(name: &str) -> NamedFrame {
    python(name)
        .or_else(|| v8(name))
        .unwrap_or_else(|| NamedFrame {
            function: name.trim_end().to_owned(),
            ..NamedFrame::default()
        })
}

/// Splits `py::QUALIFIED:FILE`, which CPython writes with `-X perf` (Objects/perf_trampoline.c).
fn python(name: &str) -> Option<NamedFrame> {
    let (qualified, file) = name.strip_prefix("py::")?.split_once(':')?;
    let function = qualified.rsplit('.').next().unwrap_or(qualified);
    Some(NamedFrame {
        kind: FrameKind::CPYTHON,
        function: function.to_owned(),
        qualified_name: qualified.to_owned(),
        file: file.to_owned(),
        line: 0,
    })
}

/// Splits `JS:*FUNCTION FILE:LINE:COLUMN`, with any kind of code for `JS` (V8, src/logging/log.cc).
/// The mark before the function is the tier that compiled it; Node.js 26 and later write `o` before
/// it for on-stack replacement.
fn v8(name: &str) -> Option<NamedFrame> {
    const CODE: [&str; 6] = [
        "JS",
        "LazyCompile",
        "Function",
        "Script",
        "Eval",
        "InterpretedFunction",
    ];
    const GENERATED: [&str; 5] = ["Builtin", "BytecodeHandler", "Stub", "RegExp", "Wasm"];
    let (kind, rest) = name.trim_end().split_once(':')?;
    let mut frame = NamedFrame {
        kind: FrameKind::V8JS,
        ..NamedFrame::default()
    };
    if GENERATED.contains(&kind) {
        frame.function = rest.to_owned();
        return Some(frame);
    }
    if !CODE.contains(&kind) {
        return None;
    }
    const TIERS: [char; 5] = ['*', '~', '^', '+', '\''];
    let replaced = rest.strip_prefix('o').filter(|it| it.starts_with(TIERS));
    let rest = replaced.unwrap_or(rest).trim_start_matches(TIERS);
    let (function, place) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut place = place.rsplitn(3, ':');
    if let (Some(_), Some(line), Some(file)) = (place.next(), place.next(), place.next()) {
        frame.line = line.parse().unwrap_or(0);
        frame.file = file.to_owned();
    }
    // A program has many anonymous functions: the place distinguishes them.
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    frame.function = match (function, file) {
        ("", "") => "(anonymous)".to_owned(),
        ("", file) => format!("(anonymous {file}:{})", frame.line),
        (function, _) => function.to_owned(),
    };
    Some(frame)
}
