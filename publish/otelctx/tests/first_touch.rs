//! A thread's first touch of a dynamic thread-local variable keeps the caller's vector registers.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod packages;

use std::process::Command;

use packages::{have_cargo, Package, OTELCTX};

/// The library. All sixteen registers hold values while the thread touches the variable: the empty
/// assembly keeps the compiler from reading them from memory again.
const LIBRARY: &str = r#"
use std::arch::{asm, x86_64::*};

#[no_mangle]
pub extern "C" fn hold() -> bool {
    if is_x86_feature_detected!("avx") { unsafe { hold_avx() } } else { unsafe { hold_sse() } }
}

macro_rules! hold {
    ($name:ident, $feature:literal, $class:ident, $set:ident, $type:ty, $count:literal) => {
        #[target_feature(enable = $feature)]
        unsafe fn $name() -> bool {
            macro_rules! held { ($value:literal) => {{
                let mut held = $set($value);
                asm!("/* {0} */", inout($class) held);
                held
            }}; }
            let (a, b, c, d) = (held!(0.0), held!(1.0), held!(2.0), held!(3.0));
            let (e, f, g, h) = (held!(4.0), held!(5.0), held!(6.0), held!(7.0));
            let (i, j, k, l) = (held!(8.0), held!(9.0), held!(10.0), held!(11.0));
            let (m, n, o, p) = (held!(12.0), held!(13.0), held!(14.0), held!(15.0));
            let record = otelctx::thread_context();
            let all = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
            let all: [[f64; $count]; 16] = std::mem::transmute::<[$type; 16], _>(all);
            record.set([1; 16], [2; 8], otelctx::TraceFlags::NONE);
            let right = (0..16).all(|at| all[at] == [at as f64; $count]);
            if !right {
                eprintln!("{all:?}");
            }
            right
        }
    };
}
hold!(hold_avx, "avx", ymm_reg, _mm256_set1_pd, __m256d, 4);
hold!(hold_sse, "sse2", xmm_reg, _mm_set1_pd, __m128d, 2);
"#;

const MAIN: &str = r#"
use std::ffi::{c_char, c_int, c_void, CString};
extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}
fn main() {
    let file = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    let hold: extern "C" fn() -> bool = unsafe {
        let library = dlopen(file.as_ptr(), 2);
        std::mem::transmute(dlsym(library, c"hold".as_ptr()))
    };
    for _ in 0..20 {
        assert!(std::thread::spawn(move || hold()).join().unwrap());
    }
    println!("held");
}
"#;

#[test]
fn vector_registers_survive_a_threads_first_touch() {
    if !have_cargo() {
        return;
    }
    let manifest = format!(
        "[lib]\ncrate-type = [\"cdylib\"]\n[[bin]]\nname = \"loader\"\npath = \"src/main.rs\"\n\
         [dependencies]\notelctx.path = {OTELCTX:?}\n"
    );
    let files = [("src/lib.rs", LIBRARY), ("src/main.rs", MAIN)];
    let package = Package::new("first_touch", &manifest, &files);
    // Optimised: otherwise the values lie on the stack anyway.
    let (library, _) = package.build("libfirst_touch.so", &["--release"], &[]);
    let (loader, _) = package.build("loader", &["--release"], &[]);
    for tunables in ["", "glibc.rtld.optional_static_tls=0"] {
        let output = Command::new(&loader)
            .arg(&library)
            .env("GLIBC_TUNABLES", tunables)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tunables:?}: {errors}");
        assert_eq!(output.stdout, b"held\n");
    }
}
