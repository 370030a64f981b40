//! A program with a copy of `otelctx`, which loads the libraries that its arguments name. Executes
//! commands from standard input: a number (0: the program's own copy; 1: that of the first library),
//! a tab, and what `copy.rs` describes, or one of these for a library:
//!
//! - `otelctx_withdraw`: calls its function of that name
//! - `unload`, `load`: 0 for success; 1 if it is still loaded
//!
//! With `all` in place of the number, all copies execute the command at the same time, each on a thread of its
//! own: the result is that of each, separated by spaces.
//!
//! Answers each with `result`, a tab and its result, and `done`.

#[path = "../copy.rs"]
mod copy;

use std::ffi::{CStr, CString, c_void};
use std::io::BufRead;
use std::mem;
use std::sync::Barrier;
use std::thread;

type Execute = unsafe extern "C" fn(*const u8, usize) -> i32;
type Withdraw = unsafe extern "C" fn() -> bool;

struct Library {
    path: CString,
    handle: *mut c_void,
    execute: Execute,
    otelctx_withdraw: Withdraw,
}

impl Library {
    fn execute(&mut self, command: &str) -> i32 {
        // SAFETY: the text lives through the call; the library is loaded.
        unsafe {
            match command {
                "otelctx_withdraw" => i32::from(!(self.otelctx_withdraw)()),
                "load" => {
                    *self = load(self.path.clone());
                    0
                }
                "unload" => {
                    let closed = libc::dlclose(self.handle);
                    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
                    let is_loaded = !libc::dlopen(self.path.as_ptr(), flags).is_null();
                    closed | i32::from(is_loaded)
                }
                _ => (self.execute)(command.as_ptr(), command.len()),
            }
        }
    }
}

fn load(path: CString) -> Library {
    // SAFETY: the library is one of `examples/copy.rs`. It is not called while it is unloaded.
    unsafe {
        // Its symbols are its own, as those of a Python module's library are.
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "dlopen {path:?}");
        let function = |name: &CStr| {
            let function = libc::dlsym(handle, name.as_ptr());
            assert!(!function.is_null(), "{path:?} has no function {name:?}");
            function
        };
        Library {
            execute: mem::transmute::<*mut c_void, Execute>(function(c"execute")),
            otelctx_withdraw: mem::transmute::<*mut c_void, Withdraw>(function(
                c"otelctx_withdraw",
            )),
            path,
            handle,
        }
    }
}

fn main() {
    let paths = std::env::args().skip(1);
    let paths = paths.map(|path| CString::new(path).expect("no NUL"));
    let mut libraries: Vec<Library> = paths.map(load).collect();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("commands are UTF-8");
        let (number, command) = line.split_once('\t').expect("a number and a command");
        let result = match number {
            "all" => all(&libraries, command),
            "0" => copy::execute(command).to_string(),
            number => {
                let number = number.parse::<usize>().expect("a number");
                libraries[number - 1].execute(command).to_string()
            }
        };
        println!("result\t{result}\ndone");
    }
}

fn all(libraries: &[Library], command: &str) -> String {
    let start = Barrier::new(libraries.len() + 1);
    let results: Vec<i32> = thread::scope(|scope| {
        let run = |execute: Option<Execute>| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                match execute {
                    // SAFETY: the text lives through the call; the library is loaded.
                    Some(execute) => unsafe { execute(command.as_ptr(), command.len()) },
                    None => copy::execute(command),
                }
            })
        };
        let libraries = libraries.iter().map(|library| Some(library.execute));
        let threads: Vec<_> = [None].into_iter().chain(libraries).map(run).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|result| result.expect("no panic")).collect()
    });
    let results: Vec<String> = results.iter().map(i32::to_string).collect();
    results.join(" ")
}
