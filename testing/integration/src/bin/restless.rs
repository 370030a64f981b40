//! Publishes, and repeats something that changes what a reader has resolved. The first argument says
//! what: `work` (nothing more), `exec`, `fork`, `dlclose`, `unpublish`. For
//! `dlclose` the second names a library that defines the variable too.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use otelctx::{Context, Key, ProcessContext};

static ROUTE: Key = Key::new("http.route");

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let mut published = Some(publish());
    for number in 1..=3_u8 {
        std::thread::spawn(move || {
            loop {
                let mut record = Context::new([number; 16], [number; 8])
                    .unwrap()
                    .with_attribute(&ROUTE, "/cart");
                let attached = record.attach();
                if number == 3 {
                    std::thread::sleep(Duration::from_micros(300));
                }
                drop(attached);
            }
        });
    }
    // Programs that replace this one do not say it again.
    if std::env::var_os("RESTLESS_STARTED").is_none() {
        println!("ready");
        std::io::stdout().flush().expect("standard output is open");
    }
    for round in 0_u64.. {
        let pause = Duration::from_micros(round.wrapping_mul(2_654_435_761) % 1500);
        match arguments[1].as_str() {
            "work" => std::thread::sleep(Duration::from_secs(1)),
            "exec" => {
                std::thread::sleep(Duration::from_millis(10) + pause);
                let error = std::process::Command::new("/proc/self/exe")
                    .args(&arguments[1..])
                    .env("RESTLESS_STARTED", "1")
                    .exec();
                panic!("exec: {error}");
            }
            "fork" => fork(),
            "dlclose" => load_and_unload(&arguments[2], pause),
            "unpublish" => {
                drop(published.take());
                std::thread::sleep(pause);
                published = Some(publish());
                std::thread::sleep(pause);
            }
            other => panic!("unknown task {other}"),
        }
    }
    drop(published);
}

fn publish() -> otelctx::Published {
    ProcessContext::new()
        .with_service_name("restless")
        .publish()
        .expect("nothing else is published here")
}

/// Starts a child that ends at once, and waits for it.
fn fork() {
    // SAFETY: the child calls only _exit, which is async-signal-safe.
    match unsafe { libc::fork() } {
        // SAFETY: _exit does not return.
        0 => unsafe { libc::_exit(0) },
        // SAFETY: waitpid writes nothing through a null status.
        child => unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) },
    };
}

fn load_and_unload(library: &str, pause: Duration) {
    let path = CString::new(library).expect("a path has no NUL");
    // SAFETY: the library has no constructor, and nothing of it is used after dlclose.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "{library} does not load");
        std::thread::sleep(pause);
        libc::dlclose(handle);
    }
}
