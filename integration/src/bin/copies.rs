//! A program with a copy of `otelctx`, which loads the libraries that its arguments name. Executes
//! commands from standard input: a number (0: the program's own copy; 1: that of the first library),
//! a tab, and what `copy.rs` describes, or `otelctx_withdraw`, which calls the library's function of
//! that name. Answers each with `result`, a tab and its result, and `done`.

#[path = "../copy.rs"]
mod copy;

use std::ffi::{CStr, CString, c_void};
use std::io::BufRead;
use std::mem;

type Execute = unsafe extern "C" fn(*const u8, usize) -> i32;
type Withdraw = unsafe extern "C" fn() -> bool;

struct Library {
    execute: Execute,
    otelctx_withdraw: Withdraw,
}

fn load(path: String) -> Library {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: the library is one of `examples/copy.rs`, and stays loaded.
    unsafe {
        // Its symbols are its own, as those of a Python module's library are.
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "dlopen {path:?}");
        let function = |name: &CStr| {
            let function = libc::dlsym(library, name.as_ptr());
            assert!(!function.is_null(), "{path:?} has no function {name:?}");
            function
        };
        Library {
            execute: mem::transmute::<*mut c_void, Execute>(function(c"execute")),
            otelctx_withdraw: mem::transmute::<*mut c_void, Withdraw>(function(
                c"otelctx_withdraw",
            )),
        }
    }
}

fn main() {
    let libraries: Vec<Library> = std::env::args().skip(1).map(load).collect();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("commands are UTF-8");
        let (number, command) = line.split_once('\t').expect("a number and a command");
        let result = match number.parse().expect("a number") {
            0 => copy::execute(command),
            // SAFETY: the text lives through the call.
            number => unsafe {
                let library: &Library = &libraries[number - 1];
                match command {
                    "otelctx_withdraw" => i32::from(!(library.otelctx_withdraw)()),
                    _ => (library.execute)(command.as_ptr(), command.len()),
                }
            },
        };
        println!("result\t{result}\ndone");
    }
}
