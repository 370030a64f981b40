//! Every name that a context's mapping can have, on kernels that name anonymous memory
//! (`CONFIG_ANON_VMA_NAME`) and on kernels that do not; asked for one by one (`PROCMAP_QUERY`) and as
//! text. `cargo xtask kernels` runs this under each kind of kernel.

use std::io::Write;
use std::process::Command;

use nix::libc;
use otelctx_fixtures::Compiler;

use crate::run::{Answer, command, deny};
use crate::target::Target;

const MEMFD: &str = "/memfd:OTEL_CTX (deleted)";
/// The kernel's name of a named mapping of shared memory, and so of a memfd's.
const SHARED: &str = "[anon_shmem:OTEL_CTX]";
const PRIVATE: &str = "[anon:OTEL_CTX]";

/// Written past the test harness, which would keep it to itself.
fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "names: {line}").unwrap();
}

/// Returns whether this kernel names anonymous mappings.
fn kernel_names_mappings() -> bool {
    // From linux/prctl.h.
    const PR_SET_VMA: libc::c_int = 0x5356_4d41;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping of our own, unmapped by nobody.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        libc::prctl(PR_SET_VMA, 0_usize, page, 4096_usize, c"test".as_ptr()) == 0
    }
}

/// Returns whether this kernel answers `PROCMAP_QUERY`.
fn kernel_answers_queries() -> bool {
    use std::os::fd::AsRawFd;
    /// `_IOWR('f', 17, struct procmap_query)`, linux/fs.h; the structure has 104 bytes, of which the
    /// first eight tell its size.
    const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
    let maps = std::fs::File::open("/proc/self/maps").unwrap();
    let mut query = [0_u64; 13];
    query[0] = 104;
    // The next mapping at or above address 0.
    query[1] = 0x10;
    // SAFETY: the structure is as long as it says.
    unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, query.as_mut_ptr()) == 0 }
}

/// Returns the mapping's name that the command finds, if any, by each of its methods.
fn found(pid: i32) -> Option<String> {
    let dump = |text: bool| {
        // An emulated machine may need more than the default deadline.
        let pid = pid.to_string();
        let mut command = command(&["dump", &pid, "--json", "--deadline", "60"]);
        if text {
            // As kernels before 6.11 answer PROCMAP_QUERY.
            deny(&mut command, libc::SYS_ioctl, libc::ENOTTY);
        }
        let mut answer = Answer::of(command.output().unwrap()).expect(0).json();
        answer["process_context"].take()
    };
    let [asked, read] = [false, true].map(dump);
    assert_eq!(asked, read);
    let mapping = asked["mapping"].as_str().map(str::to_owned);
    let listing = Answer::of(command(&["ps", "--json"]).output().unwrap());
    let listed = listing.expect(0).json()["processes"]
        .as_array()
        .unwrap()
        .iter()
        .any(|process| process["pid"] == pid);
    assert_eq!(listed, mapping.is_some());
    mapping
}

/// A publisher that may not do everything: what is found of it.
fn sandboxed(denied: &[libc::c_long]) -> Option<String> {
    let target = Target::start_with("sandboxed", |command: &mut Command| {
        for call in denied {
            deny(command, *call, libc::EPERM);
        }
    });
    let found = found(target.pid());
    // A publisher that cannot be found got an error.
    assert_eq!(target.number("invisible") == 1, found.is_none());
    found
}

#[test]
fn a_context_is_found_by_any_name_or_its_publisher_knows_better() {
    let named = kernel_names_mappings();
    let yes = |it: bool| if it { "yes" } else { "no" };
    say(&format!(
        "anonymous mappings can have names: {}; PROCMAP_QUERY: {}",
        yes(named),
        yes(kernel_answers_queries())
    ));
    let (memfd, prctl) = (libc::SYS_memfd_create, libc::SYS_prctl);
    let mut rows = vec![
        (
            "memfd, named",
            sandboxed(&[]),
            Some(if named { SHARED } else { MEMFD }),
        ),
        ("memfd, naming denied", sandboxed(&[prctl]), Some(MEMFD)),
        (
            "memfd denied, named",
            sandboxed(&[memfd]),
            named.then_some(PRIVATE),
        ),
        ("memfd and naming denied", sandboxed(&[memfd, prctl]), None),
    ];
    let sources = ["threads.c", "variable.c", "publish.c"];
    let flags = ["-DLINKED", "-rdynamic", "-DSHARED"];
    if let Some(program) = Compiler::gcc().program(&sources, &flags) {
        let target = otelctx_fixtures::Target::spawn(&mut Command::new(program));
        let found = found(target.pid());
        let expected = named.then_some(SHARED);
        rows.push(("shared memory, by another publisher", found, expected));
    }
    for (how, found, _) in &rows {
        say(&format!("{how:<36} {}", found.as_deref().unwrap_or("none")));
    }
    for (how, found, expected) in rows {
        assert_eq!(found.as_deref(), expected, "{how}");
    }
}
