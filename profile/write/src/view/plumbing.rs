//! Functions that carry out a program without being part of it: of interpreters, of the start of
//! threads and programs, and of system calls. Views leave them out.

/// A kind of plumbing: its functions are left out between others, and where a stack ends in them,
/// one box with this name stands for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plumbing {
    pub(crate) name: &'static str,
    /// The kinds of frames that it applies to; empty for all.
    kinds: &'static [&'static str],
    /// Whole names; with none and no beginnings, any.
    names: &'static [&'static str],
    /// Beginnings of names.
    prefixes: &'static [&'static str],
    /// What the function's file must contain; empty for any file.
    files: &'static [&'static str],
}

const NATIVE: &[&str] = &["native"];

/// What is plumbing, by runtime. The first entry that applies counts.
pub(crate) const PLUMBING: &[Plumbing] = &[
    // glibc's csu/libc-start.c and nptl/pthread_create.c, musl's src/env/__libc_start_main.c.
    Plumbing {
        name: "start",
        kinds: NATIVE,
        names: &["_start", "__clone", "clone3", "__clone3", "start_thread"],
        prefixes: &["__libc_start_", "libc_start_", "__GI___clone"],
        files: &[],
    },
    // Rust's start of programs and threads, and its closures, with debug information and without.
    Plumbing {
        name: "start",
        kinds: NATIVE,
        names: &[],
        prefixes: &[],
        files: &[
            "/library/std/src/rt.rs",
            "/library/std/src/panic.rs",
            "/library/std/src/panicking.rs",
            "/library/std/src/thread/",
            "/library/std/src/sys/backtrace.rs",
            "/library/std/src/sys/thread/",
            "/library/std/src/sys/pal/unix/thread.rs",
            "/library/core/src/ops/function.rs",
            "/library/core/src/panic/unwind_safe.rs",
            "/library/alloc/src/boxed.rs",
        ],
    },
    Plumbing {
        name: "start",
        kinds: NATIVE,
        names: &["lang_start", "__rust_try"],
        prefixes: &[
            "std::rt::",
            "std::sys::backtrace::__rust_begin_short_backtrace",
            "std::sys::thread::",
            "std::sys::pal::unix::thread::",
            "std::thread::",
            "std::panicking::",
            "std::panic::",
            "core::ops::function::",
            "<alloc::boxed::Box<",
        ],
        files: &[],
    },
    // CPython's Modules/main.c and Python/pythonrun.c.
    Plumbing {
        name: "start",
        kinds: NATIVE,
        names: &[
            "thread_run",
            "pythread_wrapper",
            "run_mod",
            "run_eval_code_obj",
        ],
        prefixes: &[
            "Py_Main",
            "Py_RunMain",
            "Py_BytesMain",
            "pymain_",
            "PyRun_",
            "_PyRun_",
        ],
        files: &[],
    },
    // CPython's own code, with debug information: its sources but for the modules.
    Plumbing {
        name: "python",
        kinds: NATIVE,
        names: &[],
        prefixes: &[],
        files: &[
            "Objects/",
            "Python/ceval",
            "Python/generated_cases",
            "Python/bytecodes",
            "Python/context.c",
            "Python/errors.c",
            "Python/getargs.c",
            "Python/gc.c",
            "Python/specialize.c",
            "Python/thread",
            "Include/internal/pycore_",
            "Include/cpython/",
            "Include/object.h",
            "Include/refcount.h",
            "Modules/gcmodule.c",
            "Modules/_threadmodule.c",
        ],
    },
    // Without: the names of its C API, and of functions that call a program's.
    Plumbing {
        name: "python",
        kinds: NATIVE,
        names: &[
            "slot_tp_call",
            "slot_tp_init",
            "object_vacall",
            "gen_iternext",
        ],
        prefixes: &[
            "_PyEval_",
            "_PyFunction_",
            "_PyObject_",
            "_PyGen_",
            "_PyVectorcall_",
            "_PyDict_",
            "_PyType_",
            "_PyJIT",
            "PyEval_",
            "PyObject_",
            "PyVectorcall_",
            "PyGen_",
            "PyIter_",
            "PyDict_",
            "PyList_",
            "PyTuple_",
            "PyLong_",
            "PyUnicode_",
            "PyMem_",
            "PyType_",
            "Py_INCREF",
            "Py_DECREF",
            "Py_XDECREF",
            "Py_TYPE",
            "cfunction_vectorcall_",
            "method_vectorcall",
            "gen_send_ex",
        ],
        files: &[],
    },
    // V8's builtins between JavaScript functions (src/builtins), and Node's entry to them.
    Plumbing {
        name: "node",
        kinds: &["native", "v8js"],
        names: &[
            "Builtins_JSEntry",
            "Builtins_JSEntryTrampoline",
            "Builtins_InterpreterEntryTrampoline",
            "Builtins_AsyncFunctionAwaitResolveClosure",
            "Builtins_PromiseFulfillReactionJob",
            "Builtins_RunMicrotasks",
            "Builtins_JSRunMicrotasksEntry",
        ],
        prefixes: &[
            "Builtins_ArgumentsAdaptor",
            "Builtins_Call_",
            "v8::Function::Call",
            "v8::internal::Execution::",
            "v8::internal::(anonymous namespace)::Invoke",
            "v8::internal::MicrotaskQueue::",
            "node::MakeCallback",
            "node::InternalMakeCallback",
            "node::AsyncWrap::MakeCallback",
            "node::InternalCallbackScope::",
            "node::LoadEnvironment",
            "node::SpinEventLoop",
            "node::NodeMainInstance::Run",
            "node::Start",
            "uv_run",
            "uv__run_",
            "uv__io_poll",
        ],
        files: &[],
    },
    // The kernel's entry (arch/x86/entry, arch/arm64/kernel/entry.S, syscall.c).
    Plumbing {
        name: "system call",
        kinds: &["kernel"],
        names: &[
            "do_syscall_64",
            "x64_sys_call",
            "el0t_64_sync",
            "el0t_64_sync_handler",
            "el0_svc",
            "do_el0_svc",
            "ret_from_fork",
            "ret_from_fork_asm",
        ],
        prefixes: &[
            "entry_SYSCALL_",
            "__x64_sys_",
            "__arm64_sys_",
            "__do_sys_",
            "__se_sys_",
            "asm_",
        ],
        files: &[],
    },
    // CPython's Lib/threading.py, and Lib/runpy.py for `python -m`.
    Plumbing {
        name: "thread",
        kinds: &["cpython"],
        names: &[
            "Thread._bootstrap",
            "Thread._bootstrap_inner",
            "Thread.run",
            "_run_module_as_main",
            "_run_module_code",
            "_run_code",
        ],
        prefixes: &[],
        files: &["threading.py", "runpy"],
    },
    // Rust's futures between functions of the program.
    Plumbing {
        name: "poll",
        kinds: NATIVE,
        names: &[],
        prefixes: &[
            "<otelctx::thread::scope::InScope<",
            "<core::pin::Pin<P> as core::future::future::Future>::poll",
            "<core::future::poll_fn::PollFn<F> as core::future::future::Future>::poll",
            "core::future::",
            "<tracing::instrument::Instrumented<T> as core::future::future::Future>::poll",
        ],
        files: &[],
    },
];

/// Returns the index in [`PLUMBING`] of a function's kind; `None` for a function of a program.
pub(crate) fn plumbing_of(kind: &str, name: &str, file: &str) -> Option<usize> {
    let found = PLUMBING.iter().position(|it| {
        (it.kinds.is_empty() || it.kinds.contains(&kind))
            && (it.files.is_empty() || it.files.iter().any(|part| file.contains(part)))
            && (it.names.is_empty() && it.prefixes.is_empty()
                || it.names.contains(&name)
                || it.prefixes.iter().any(|start| name.starts_with(start)))
    });
    // The first one of this name stands for all.
    let name = PLUMBING[found?].name;
    PLUMBING.iter().position(|it| it.name == name)
}
