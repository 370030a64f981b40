//! Language runtimes that generate code.

use otelctx_sample::{FrameKind, NamedFrame};

/// Label of JavaScript's code, whose frames name the program: many programs have its engines.
const JAVASCRIPT: &str = "[JavaScript]";

/// Programs and libraries whose names end with a version: the start of the name, kind, label.
const VERSIONED: [(&str, FrameKind, &str); 5] = [
    ("python", FrameKind::CPYTHON, "[Python]"),
    ("ruby", FrameKind::RUBY, "[Ruby]"),
    ("php", FrameKind::PHP, "[PHP]"),
    ("luajit", FrameKind::NATIVE, "[Lua]"),
    ("monosgen", FrameKind::DOTNET, "[.NET]"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JitRuntime<'m> {
    pub(crate) kind: FrameKind,
    /// Label of its code, such as `[Java]`.
    pub(crate) label: &'static str,
    pub(crate) module: &'m str,
}

impl<'m> JitRuntime<'m> {
    pub(super) fn of_module(module: &'m str) -> Option<Self> {
        let (kind, label) = match module {
            "libjvm.so" => (FrameKind::JVM, "[Java]"),
            "libcoreclr.so" | "mono" | "mono-sgen" => (FrameKind::DOTNET, "[.NET]"),
            "node" | "nodejs" | "chromium" | "chrome" | "electron" | "deno" => {
                (FrameKind::V8JS, JAVASCRIPT)
            }
            // Its engine is not V8.
            "bun" | "bun.exe" => (FrameKind::NATIVE, JAVASCRIPT),
            "beam.smp" => (FrameKind::BEAM, "[BEAM]"),
            name => {
                let name = name.strip_prefix("lib").unwrap_or(name);
                let (_, kind, label) = *VERSIONED.iter().find(|it| name.starts_with(it.0))?;
                (kind, label)
            }
        };
        Some(Self {
            kind,
            label,
            module,
        })
    }

    pub(super) fn copy_of_node(program: &'m str) -> Self {
        Self {
            kind: FrameKind::V8JS,
            label: JAVASCRIPT,
            module: program,
        }
    }

    /// The frame of a function without an announced name.
    pub(crate) fn unnamed(&self) -> NamedFrame {
        let function = match self.label {
            JAVASCRIPT => format!("[JavaScript in {}]", self.module),
            label => label.to_owned(),
        };
        NamedFrame {
            kind: self.kind,
            function,
            ..NamedFrame::default()
        }
    }
}
