//! The names of the code that ran: of files that are replaced, deleted, closed, or that run for
//! milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::unistd::geteuid;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{Line, ProfilesData};
use otelctx_fixtures::kernel::{has_mapping_tree, is_emulated};
use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Compiler, Node, program_source};
use prost::Message as _;

use crate::otlp;
use crate::run::{Answer, Scratch, given_time, otelctx};

/// One sample: when it was taken (Unix time, nanoseconds), of which process, and the names of its
/// functions in user mode, innermost first; empty for frames without a name.
struct Seen {
    time: u64,
    pid: i64,
    functions: Vec<String>,
}

impl Seen {
    fn calls(&self, name: &str) -> bool {
        self.functions.iter().any(|function| function == name)
    }
}

fn samples(data: &ProfilesData) -> Vec<Seen> {
    let dictionary = data.dictionary.as_ref().unwrap();
    let text = |index: i32| &dictionary.string_table[index as usize];
    let functions = |stack: i32| {
        let locations = dictionary.stack_table[stack as usize]
            .location_indices
            .iter();
        let locations = locations.map(|index| &dictionary.location_table[*index as usize]);
        let in_process = locations.filter(|location| {
            let mapping = &dictionary.mapping_table[location.mapping_index as usize];
            text(mapping.filename_strindex) != "[kernel]"
        });
        let name = |line: &Line| {
            text(dictionary.function_table[line.function_index as usize].name_strindex).clone()
        };
        let names = in_process.map(|it| it.lines.first().map_or(String::new(), name));
        names.collect::<Vec<_>>()
    };
    let mut seen = Vec::new();
    for resource in &data.resource_profiles {
        let attributes = &resource.resource.as_ref().unwrap().attributes;
        let pid = attributes.iter().find(|it| it.key == "process.pid");
        let Some(Value::IntValue(pid)) = pid.unwrap().value.clone().unwrap().value else {
            panic!("{pid:?}");
        };
        for profile in resource.scope_profiles.iter().flat_map(|it| &it.profiles) {
            for sample in &profile.samples {
                seen.extend(sample.timestamps_unix_nano.iter().map(|time| Seen {
                    time: *time,
                    pid,
                    functions: functions(sample.stack_index),
                }));
            }
        }
    }
    seen
}

/// A program or library whose function has this name. `None`, with a line, without a compiler.
fn working(name: &str, milliseconds: u32, flags: &[&str]) -> Option<PathBuf> {
    let defined = [
        format!("-DNAME={name}"),
        format!("-DMILLISECONDS={milliseconds}"),
    ];
    let mut all = vec!["-O1", "-fno-omit-frame-pointer"];
    all.extend(defined.iter().map(String::as_str));
    all.extend(flags);
    match flags {
        ["-DPROGRAM"] => Compiler::gcc().program(&["work.c"], &all),
        _ => Compiler::gcc().library(&["work.c"], &all),
    }
}

/// The seconds that [`given_time`] gives, multiplied by `times`, in milliseconds.
fn milliseconds(seconds: &str, times: f64) -> u32 {
    (1000.0 * times * seconds.parse::<f64>().unwrap()) as u32
}

/// Records a command with eBPF; `None`, with a line, without the rights to.
fn record(scratch: &Scratch, command: &[&str]) -> Option<(Answer, Vec<Seen>)> {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return None;
    }
    Some(record_with_any_right(scratch, command))
}

/// Records a command with eBPF, or without the rights to with ptrace.
fn record_with_any_right(scratch: &Scratch, command: &[&str]) -> (Answer, Vec<Seen>) {
    let path = scratch.path("a.otlp");
    let options = ["record", "-F", "999", "-o", &path, "--"];
    let answer = otelctx(&[&options[..], command].concat()).expect(0);
    let samples = samples(&otlp::read(&path));
    (answer, samples)
}

/// Returns the share of samples with a user stack whose innermost function has a name, in percent.
/// Prints that, and how many samples have the name of other code, for docs/benchmarks.md.
fn named(what: &str, samples: &[&Seen], wrong: usize) -> usize {
    let innermost = samples.iter().filter_map(|it| it.functions.first());
    let (named, all) = innermost.fold((0, 0), |(named, all), name| {
        (named + usize::from(!name.is_empty()), all + 1)
    });
    eprintln!("{what}: {named} of {all} samples are named, {wrong} wrong");
    100 * named / all
}

#[test]
fn code_at_the_address_of_closed_code_has_its_own_names() {
    let scratch = Scratch::new("code-plugins");
    let Some(host) = Compiler::gcc().program(&["plugins.c"], &["-ldl"]) else {
        return;
    };
    let names = ["only_first", "only_second"];
    let [first, second] = names.map(|name| working(name, 10, &[]).unwrap());
    let paths = [&host, &first, &second].map(|path| path.to_str().unwrap());
    let command = [paths[0], "100", paths[1], paths[2]];
    let Some((answer, samples)) = record(&scratch, &command) else {
        return;
    };
    let mut addresses: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut inside, mut wrong) = (Vec::new(), 0);
    for line in answer.stdout.lines().filter(|line| line.starts_with('/')) {
        let [path, start, end, address] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        *addresses.entry(address).or_default() += 1;
        let interval = start.parse::<u64>().unwrap()..end.parse::<u64>().unwrap();
        let other = names[usize::from(Path::new(path) == first)];
        let sampled = samples.iter().filter(|it| interval.contains(&it.time));
        let sampled: Vec<_> = sampled.collect();
        wrong += sampled.iter().filter(|it| it.calls(other)).count();
        inside.extend(sampled);
    }
    // Or the test has checked nothing.
    assert!(addresses.into_values().any(|count| count > 50));
    assert!(inside.len() > 50, "{}", inside.len());
    let share = named("plugins", &inside, wrong);
    assert_eq!(wrong, 0, "{answer:?}");
    // An emulated machine has one CPU, on which libraries are closed before the recorder runs: how many depends on its host.
    let least = if is_emulated() { 50 } else { 98 };
    assert!(share >= least, "{share} %");
    assert!(inside.iter().any(|it| it.calls(names[0])));
    assert!(inside.iter().any(|it| it.calls(names[1])));
}

#[test]
fn a_program_that_is_replaced_or_deleted_keeps_its_names() {
    let names = ["only_old", "only_new"];
    let Some(old) = working(names[0], 1500, &["-DPROGRAM"]) else {
        return;
    };
    let new = working(names[1], 1500, &["-DPROGRAM"]).unwrap();
    let scratch = Scratch::new("code-replaced");
    let (program, other) = (scratch.path("program"), scratch.path("new"));
    otelctx_fixtures::copy_program(old, &program);
    otelctx_fixtures::copy_program(new, &other);
    // On a busy machine it takes time until the shell's child has executed the file.
    let script = "started() { \
        n=0; until [ \"$(readlink /proc/$!/exe)\" = $0 ] || [ $n = 100 ]; do n=$((n+1)); sleep 0.01; done; \
        sleep 0.2; }; \
        $0 & echo $! old; started; mv $1 $0; $0 & echo $! new; started; rm $0; wait";
    let Some((answer, samples)) = record(&scratch, &["sh", "-c", script, &program, &other]) else {
        return;
    };
    for (which, [own, other]) in [("old", names), ("new", [names[1], names[0]])] {
        let line = answer.stdout.lines().find(|line| line.ends_with(which));
        let pid: i64 = line.unwrap().split(' ').next().unwrap().parse().unwrap();
        let samples: Vec<_> = samples.iter().filter(|it| it.pid == pid).collect();
        assert!(samples.len() > 10, "{which}");
        let wrong = samples.iter().filter(|it| it.calls(other)).count();
        let share = named(which, &samples, wrong);
        assert_eq!(wrong, 0, "{which}");
        assert!(samples.iter().any(|it| it.calls(own)), "{which}");
        assert!(share >= 98, "{which}: {share} % of {}", samples.len());
    }
}

/// Runs two programs in turn, a thousand processes in all.
#[test]
fn processes_that_live_for_milliseconds_have_their_own_names() {
    let names = ["briefly_first", "briefly_second"];
    let Some(first) = working(names[0], 5, &["-DPROGRAM"]) else {
        return;
    };
    let second = working(names[1], 5, &["-DPROGRAM"]).unwrap();
    let scratch = Scratch::new("code-brief");
    let script = "i=0; while [ $i -lt 500 ]; do \
        $0 & echo $! 0; wait $!; $1 & echo $! 1; wait $!; i=$((i+1)); done";
    let paths = [&first, &second].map(|path| path.to_str().unwrap());
    let command = ["sh", "-c", script, paths[0], paths[1]];
    let Some((answer, samples)) = record(&scratch, &command) else {
        return;
    };
    let mut programs: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for line in answer.stdout.lines() {
        if let Some((pid, which @ ("0" | "1"))) = line.split_once(' ') {
            let of = programs.entry(pid.parse().unwrap()).or_default();
            of.push(which.parse().unwrap());
        }
    }
    assert_eq!(programs.values().flatten().count(), 1000);
    let mut brief = Vec::new();
    let (mut own, mut wrong, mut whole) = ([0; 2], 0, 0);
    for sample in &samples {
        // Of a process ID that came twice, it is not known which program ran.
        if let Some([which]) = programs.get(&sample.pid).map(Vec::as_slice) {
            let is_own = sample.calls(names[*which]);
            own[*which] += usize::from(is_own);
            let outermost = sample.functions.last();
            whole += usize::from(is_own && outermost.is_some_and(|name| name == "_start"));
            wrong += usize::from(sample.calls(names[1 - which]));
            brief.push(sample);
        }
    }
    let share = named("processes of 5 ms", &brief, wrong);
    eprintln!(
        "{own:?} of {} call their function, {whole} of these reach _start",
        brief.len()
    );
    assert_eq!(wrong, 0);
    assert!(own.iter().all(|count| *count > 250), "{own:?}");
    assert!(share >= 90, "{share} %");
    // Their mappings are found in the kernel: the recorder is too late for them.
    if has_mapping_tree() && !is_emulated() {
        assert!(
            whole * 10 >= own.iter().sum::<usize>() * 9,
            "{whole} of {own:?}"
        );
    }
}

/// Each process first executes `env`, and then the program, mostly before the recorder has come to the first one.
#[test]
fn processes_that_execute_two_programs_have_the_names_of_the_second() {
    let name = "after_env";
    let Some(program) = working(name, 12, &["-DPROGRAM"]) else {
        return;
    };
    let scratch = Scratch::new("code-env");
    let script = "i=0; while [ $i -lt 100 ]; do env $0 & echo $!; wait $!; i=$((i+1)); done";
    let command = ["sh", "-c", script, program.to_str().unwrap()];
    let Some((answer, samples)) = record(&scratch, &command) else {
        return;
    };
    let pids: BTreeSet<i64> = answer
        .stdout
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    // Others are of `env` and the loader, which take their time on a busy machine.
    let of_them = samples.iter().filter(|it| pids.contains(&it.pid));
    let unnamed = |it: &Seen| it.functions.first().is_some_and(String::is_empty);
    let (own, unknown) = of_them.fold((0, 0), |(own, unknown), it| {
        let (is_own, is_unknown) = (it.calls(name), unnamed(it));
        (own + usize::from(is_own), unknown + usize::from(is_unknown))
    });
    assert!(own > 100 && own > 4 * unknown, "{own} and {unknown}");
}

#[test]
fn generated_code_has_the_names_that_its_runtime_announced() {
    let Some(program) = Compiler::gcc().program(&["generated.c"], &["-O1"]) else {
        return;
    };
    let scratch = Scratch::new("code-generated");
    for (by, share) in LEAST_NAMED {
        let mut found = Vec::new();
        let is_named = (0..5).any(|_| {
            let command = [program.to_str().unwrap(), by];
            let Some((answer, samples)) = record(&scratch, &command) else {
                return true;
            };
            let (named, all) = named_as_announced(&answer, &samples);
            found.push((named, all));
            all > 50 && 100 * named >= share * all
        });
        assert!(is_named, "{by}: {found:?}");
    }
}

/// Minimum share of the time in generated code that has a name, in percent. A map has no times: code
/// that replaces other code has a name between the first and the last time that the recorder reads
/// the map meanwhile, which may be late on a busy machine.
const LEAST_NAMED: [(&str, usize); 2] = [("map", 50), ("dump", 95)];

/// Counts the samples in generated code with the name that was announced for their time, and all.
fn named_as_announced(answer: &Answer, samples: &[Seen]) -> (usize, usize) {
    let (mut named, mut all) = (0, 0);
    let lines = answer.stdout.lines();
    for line in lines.filter(|line| line.starts_with("generated_")) {
        let [name, start, end] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let interval = start.parse::<u64>().unwrap()..end.parse::<u64>().unwrap();
        let inside = samples.iter().filter(|it| interval.contains(&it.time));
        for function in inside.filter_map(|it| it.functions.first()) {
            let is_generated = function.starts_with("generated_");
            assert!(!is_generated || function == name, "{function} in {name}");
            named += usize::from(is_generated);
            all += usize::from(is_generated || function.is_empty());
        }
    }
    (named, all)
}

/// The program has its own mount namespace: its map is in a `/tmp` of its own, and named for its ID
/// there.
#[test]
fn generated_code_in_a_container_has_the_names_that_its_runtime_announced() {
    let Some(program) = Compiler::gcc().program(&["generated.c"], &["-O1"]) else {
        return;
    };
    let scratch = Scratch::new("code-contained");
    let unshare = ["unshare", "-m", "-p", "-f", "--mount-proc", "sh", "-c"];
    // The program may be in /tmp, too.
    let script = "exec 9< \"$0\" && mount -t tmpfs none /tmp && cp /proc/self/fd/9 /tmp/generated && \
                  chmod +x /tmp/generated && exec /tmp/generated $1 400";
    for (by, share) in LEAST_NAMED {
        let mut found = Vec::new();
        let is_named = (0..3).any(|_| {
            let command = [&unshare[..], &[script, program.to_str().unwrap(), by]].concat();
            let Some((answer, samples)) = record(&scratch, &command) else {
                return true;
            };
            let (named, all) = named_as_announced(&answer, &samples);
            found.push((named, all));
            all > 50 && 100 * named >= share * all
        });
        assert!(is_named, "{by}: {found:?}");
    }
}

/// Records a program `spinning`, and returns the samples of the time that it has written.
fn record_spinning(scratch: &Scratch, command: &mut Command) -> Vec<Seen> {
    record_spinning_for(scratch, command, "3000")
}

/// The same for a number of milliseconds.
fn record_spinning_for(scratch: &Scratch, command: &mut Command, milliseconds: &str) -> Vec<Seen> {
    command.arg(milliseconds);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|it| it.to_str().unwrap()).collect();
    let (answer, mut samples) = record_with_any_right(scratch, &words);
    assert!(!answer.stderr.contains("damaged"), "{answer:?}");
    // The runtimes leave their maps there.
    for pid in samples.iter().map(|it| it.pid).collect::<BTreeSet<_>>() {
        for file in [
            format!("/tmp/perf-{pid}.map"),
            format!("/tmp/jit-{pid}.dump"),
        ] {
            let _ = fs::remove_file(file);
        }
    }
    let mut lines = answer.stdout.lines();
    let times = lines.find_map(|line| line.strip_prefix("spun ")).unwrap();
    let (start, end) = times.split_once(' ').unwrap();
    let interval = start.parse::<u64>().unwrap()..end.parse::<u64>().unwrap();
    samples.retain(|it| interval.contains(&it.time));
    assert!(samples.len() > 50, "{words:?}: {}", samples.len());
    samples
}

/// Checks that this share of samples, in percent, or more, has each of the functions, once.
fn assert_calls(samples: &[Seen], functions: &[&str], share: usize, what: &str) {
    for function in functions {
        let count = |it: &Seen| it.functions.iter().filter(|it| it == function).count();
        let calling = samples.iter().filter(|it| count(it) == 1).count();
        let all = samples.len();
        assert!(
            100 * calling >= share * all,
            "{what}: {calling} of {all} call {function}"
        );
        assert!(
            samples.iter().all(|it| count(it) <= 1),
            "{what}: {function}"
        );
    }
}

const SPINNING: [&str; 2] = ["only_inner", "only_outer"];

#[test]
fn functions_of_node_have_the_names_that_it_announces() {
    let Some(node) = Node::find() else { return };
    let scratch = Scratch::new("code-node");
    let folder = format!("--perf-prof-path={}", scratch.path(""));
    let map = ["--perf-basic-prof", "--interpreted-frames-native-stack"];
    let dump = ["--perf-prof", &folder, "--interpreted-frames-native-stack"];
    for flags in [&map[..], &dump[..]] {
        let mut command = node.command(flags, "spinning.js");
        let samples = record_spinning(&scratch, &mut command);
        assert_calls(&samples, &SPINNING, 90, flags[0]);
    }
    // Without them, its functions are read: all but in the first samples, until it is known which runtime it has.
    let mut command = node.command(&[], "spinning.js");
    let samples = record_spinning(&scratch, &mut command);
    assert_calls(&samples, &SPINNING, 25, "its own names");
}

/// A program of Java's, killed when dropped.
struct Java(Child);

impl Java {
    /// Starts a program and waits for its first line. `None`, with a line, without Java.
    fn start(program: &str) -> Option<Self> {
        let mut command = Command::new("java");
        // The map names the code that was compiled: an inlined method has none.
        command.arg("-XX:CompileCommand=quiet");
        command.arg("-XX:CompileCommand=dontinline,Spinning.inner");
        command.arg(program_source(program)).arg("600000");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let Ok(child) = command.spawn() else {
            eprintln!("skipped: java is not installed");
            return None;
        };
        let mut java = Self(child);
        let mut line = String::new();
        let output = java.0.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let is_ready = line == "ready\n";
        if !is_ready {
            eprintln!("skipped: java cannot run source files");
        }
        is_ready.then_some(java)
    }

    fn map(&self) -> String {
        format!("/tmp/perf-{}.map", self.0.id())
    }

    /// Asks for its map; `None`, with a line, where it cannot write one.
    fn announce(&self) -> Option<String> {
        let mut command = Command::new("jcmd");
        let answer = command.args([&self.0.id().to_string(), "Compiler.perfmap"]);
        if !answer.output().is_ok_and(|answer| answer.status.success()) {
            eprintln!("skipped: there is no jcmd of a JDK 17 or later");
            return None;
        }
        Some(fs::read_to_string(self.map()).unwrap())
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        // There may be none.
        let _ = fs::remove_file(self.map());
    }
}

/// Java writes a map when `jcmd` asks for it, in which methods have other names.
#[test]
fn methods_of_java_have_names_once_where_it_announces_them_too() {
    const METHOD: &str = "Spinning.inner";
    const ANNOUNCED: &str = "int Spinning.inner(int)";
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let Some(java) = Java::start("spinning.java") else {
        return;
    };
    let mut maps = (0..240).map(|_| {
        std::thread::sleep(Duration::from_millis(500));
        java.announce()
    });
    // It is compiled within milliseconds, but for a busy machine.
    let is_done = |map: &Option<String>| map.as_ref().is_none_or(|map| map.contains(ANNOUNCED));
    if maps
        .find(is_done)
        .expect("the method is compiled")
        .is_none()
    {
        return;
    }
    let scratch = Scratch::new("code-java");
    let path = scratch.path("a.otlp");
    let pid = java.0.id().to_string();
    crate::run::given_time(|seconds| {
        let options = [
            "record", "-F", "999", "-p", &pid, "-d", seconds, "-o", &path,
        ];
        otelctx(&options).expect(0);
        let samples = samples(&otlp::read(&path));
        let innermost = samples.iter().filter_map(|it| it.functions.first());
        // Other threads compile, with functions of the virtual machine.
        let generated = innermost.filter(|it| **it == "[Java]" || it.contains("Spinning."));
        let (mut named, mut all) = (0, 0);
        for name in generated {
            named += usize::from(name == METHOD);
            all += 1;
        }
        let is_named = named > 100 && 100 * named >= 90 * all;
        is_named.then_some(()).ok_or((named, all))
    });
}

/// The recorder reads its frames itself. What it announces for perf does not name them once more.
#[test]
fn functions_of_python_have_names_once_where_it_announces_them_too() {
    let scratch = Scratch::new("code-python");
    // With `perf_jit`, in a jitdump file, whose last functions are not written before the program ends.
    for (version, option) in [("3.12", "perf"), ("3.13", "perf_jit"), ("3.14", "perf_jit")] {
        for interpreter in Interpreter::with_version(version).into_iter().take(1) {
            // On a busy machine, the interpreter and its unwind tables may come late.
            let recordings = ["3000", "10000", "30000"].into_iter().map(|milliseconds| {
                let mut command = Command::new(&interpreter.path);
                let program = interpreter.command("spinning.py");
                command.args(["-X", option]).args(program.get_args());
                let mut samples = record_spinning_for(&scratch, &mut command, milliseconds);
                let is_named = |it: &Seen| SPINNING.iter().all(|name| it.calls(name));
                let first = samples.iter().position(is_named);
                samples.drain(..first.unwrap_or(samples.len()));
                samples
            });
            let samples = recordings.into_iter().find(|it| it.len() > 50);
            let samples = samples.expect(version);
            assert_calls(&samples, &SPINNING, 90, version);
            let mut named = samples.iter().filter(|it| it.calls(SPINNING[0]));
            assert!(!named.any(|it| it.calls("[Python]")), "{version}");
        }
    }
}

#[test]
fn a_jit_dump_that_is_cut_short_or_damaged_is_counted() {
    let Some(program) = Compiler::gcc().program(&["generated.c"], &["-O1"]) else {
        return;
    };
    let scratch = Scratch::new("code-damaged");
    for (by, is_counted) in [("dump", false), ("cut", true), ("damaged", true)] {
        // On a busy machine, a function may have no sample.
        let recorded = given_time(|seconds| {
            let milliseconds = milliseconds(seconds, 0.2).to_string();
            let command = [program.to_str().unwrap(), by, &milliseconds];
            let Some((answer, samples)) = record(&scratch, &command) else {
                return Ok(None);
            };
            let ran = |name: &str| {
                let line = answer.stdout.lines().find_map(|it| it.strip_prefix(name));
                let times: Vec<u64> = line
                    .unwrap()
                    .split_whitespace()
                    .map(|it| it.parse().unwrap())
                    .collect();
                let during = times[0]..times[1];
                let mut sampled = samples.iter().filter(|it| during.contains(&it.time));
                sampled.nth(5).is_some()
            };
            match ran("generated_8 ") && ran("generated_9 ") {
                true => Ok(Some((answer, samples))),
                false => Err(answer),
            }
        });
        let Some((answer, samples)) = recorded else {
            return;
        };
        assert!(samples.iter().any(|it| it.calls("generated_8")), "{by}");
        let has_last = samples.iter().any(|it| it.calls("generated_9"));
        assert_eq!(has_last, !is_counted, "{by}");
        let said = answer.stderr.matches("1 damaged jitdump file").count();
        assert_eq!(said, usize::from(is_counted), "{by}: {answer:?}");
    }
}

/// An earlier process with the same ID has left its map: the names are not those of what runs now.
#[test]
fn a_map_that_is_older_than_its_process_names_nothing_and_is_counted() {
    let Some(program) = Compiler::gcc().program(&["generated.c"], &["-O1"]) else {
        return;
    };
    let scratch = Scratch::new("code-stale");
    let command = [program.to_str().unwrap(), "stale"];
    let Some((answer, samples)) = record(&scratch, &command) else {
        return;
    };
    assert_eq!(named_as_announced(&answer, &samples).0, 0);
    let said = "1 file with names of an earlier process's functions";
    assert!(answer.stderr.contains(said), "{answer:?}");
}

/// The map is read in pieces beside the recording, which does not wait for the rest.
#[test]
fn a_map_of_a_gibibyte_does_not_keep_the_recording() {
    let Some(program) = Compiler::gcc().program(&["generated.c"], &["-O1"]) else {
        return;
    };
    let scratch = Scratch::new("code-large");
    let command = [program.to_str().unwrap(), "large"];
    let Some((answer, samples)) = record(&scratch, &command) else {
        return;
    };
    // They run for a second.
    assert!(samples.len() > 50, "{}", samples.len());
    assert_eq!(named_as_announced(&answer, &samples).0, 0);
    let said = "1 unread rest of a file with names of generated functions";
    assert_eq!(answer.stderr.matches(said).count(), 1, "{answer:?}");
}

/// The file is kept open, and then has other content: its own names are gone, and the new ones are not those
/// of what ran.
#[test]
fn a_file_that_is_overwritten_after_it_ran_gives_no_wrong_names() {
    let Some(host) = Compiler::gcc().program(&["plugins.c"], &["-ldl"]) else {
        return;
    };
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let names = ["only_first", "only_second"];
    // Without a build ID, device and inode say that it is the same file.
    for identified in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let [first, second] = names.map(|name| working(name, 10, &[identified]).unwrap());
        // On a busy machine there may be few samples.
        given_time(|seconds| {
            let scratch = Scratch::new("code-overwritten");
            let (library, path) = (scratch.path("library.so"), scratch.path("a.otlp"));
            fs::copy(&first, &library).unwrap();
            let times = milliseconds(seconds, 0.1);
            let script = format!("$0 {times} $1 && cat $2 > $1");
            let paths = [&host, Path::new(&library), &second].map(|it| it.to_str().unwrap());
            let options = [
                "record", "-F", "999", "-o", &path, "--", "sh", "-c", &script,
            ];
            let answer = otelctx(&[&options, &paths[..]].concat()).expect(0);
            let data = ProfilesData::decode(&fs::read(&path).unwrap()[..]).unwrap();
            let samples = samples(&data);
            for name in names {
                assert!(!samples.iter().any(|it| it.calls(name)), "{identified}");
            }
            let is_unnamed = |it: &&Seen| it.functions.first().is_some_and(String::is_empty);
            if samples.iter().filter(is_unnamed).count() <= 50 {
                return Err(format!("{identified}: {}", samples.len()));
            }
            assert_overwritten(&answer, &library);
            Ok(())
        });
    }
}

/// Checks that one line says why functions of a library have no names.
fn assert_overwritten(answer: &Answer, library: &str) {
    let line = format!(
        "otelctx: {library}: no function names: the file was overwritten after it had been mapped\n"
    );
    assert_eq!(answer.stderr.matches(&line).count(), 1, "{answer:?}");
}

/// The program runs the new file's code from then on, and later loads the library again. cp truncates the file first: that
/// takes all relocations from the program, which ends.
#[test]
fn a_library_that_is_overwritten_while_it_runs_gives_no_wrong_names() {
    let Some(host) = Compiler::gcc().program(&["plugins.c"], &["-ldl"]) else {
        return;
    };
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let names = ["only_first", "only_other"];
    let id = ["-Wl,--build-id", "-Wl,--build-id=none"];
    let in_place = "dd if=$2 of=$1 conv=notrunc status=none";
    for (identified, copy) in [(id[0], in_place), (id[1], in_place), (id[0], "cp $2 $1")] {
        // On a busy machine there may be few samples.
        given_time(|seconds| {
            // Stopped, or it might run a part of each.
            let script = format!(
                "$0 3 $1 & sleep {seconds}; kill -STOP $!; echo before $(date +%s%N); {copy}; \
                 echo after $(date +%s%N); kill -CONT $!; wait"
            );
            let milliseconds = milliseconds(seconds, 2.0);
            let [first, other] =
                names.map(|name| working(name, milliseconds, &[identified]).unwrap());
            let scratch = Scratch::new("code-copied-over");
            let (library, path) = (scratch.path("library.so"), scratch.path("a.otlp"));
            fs::copy(&first, &library).unwrap();
            let paths = [&host, Path::new(&library), &other].map(|it| it.to_str().unwrap());
            let options = [
                "record", "-F", "999", "-o", &path, "--", "sh", "-c", &script,
            ];
            let answer = otelctx(&[&options, &paths[..]].concat()).expect(0);
            // The overwritten file has no hash, which backends miss.
            let data = ProfilesData::decode(&fs::read(&path).unwrap()[..]).unwrap();
            let samples = samples(&data);
            let times = |name: &str| -> Vec<u64> {
                let line = answer.stdout.lines().find_map(|it| it.strip_prefix(name));
                let numbers = line.into_iter().flat_map(str::split_whitespace);
                numbers.map_while(|it| it.parse().ok()).collect()
            };
            let calls = |name: &str, from: u64, to: u64| {
                let inside = samples.iter().filter(|it| (from..to).contains(&it.time));
                inside.filter(|it| it.calls(name)).count()
            };
            let (before, after) = (times("before ")[0], times("after ")[0]);
            let wrong = calls(names[1], 0, before) + calls(names[0], after, u64::MAX);
            assert_eq!(wrong, 0, "{identified}, {copy}");
            let is_unnamed = |it: &&Seen| it.functions.first().is_some_and(String::is_empty);
            let unnamed = samples.iter().filter(|it| it.time < before);
            let unnamed = unnamed.filter(is_unnamed).count();
            let named = calls(names[1], after, u64::MAX);
            let has_named = (identified, copy) != (id[0], in_place) || named > 50;
            if unnamed <= 50 || !has_named {
                return Err(format!(
                    "{identified}, {copy}: {unnamed} without a name, {named} of the new file have its name"
                ));
            }
            assert_overwritten(&answer, &library);
            Ok(())
        });
    }
}

/// The program is in a mount namespace of its own, and once in a PID namespace, too, which end with it.
#[test]
fn code_in_a_namespace_that_has_vanished_keeps_its_names() {
    let Some(program) = working("only_there", 500, &["-DPROGRAM"]) else {
        return;
    };
    let scratch = Scratch::new("code-vanished");
    let script = "mount -t tmpfs none $0 && cp $1 $0/program && $0/program && echo done";
    let folder = scratch.path("");
    for namespaces in [&["-m"][..], &["-m", "-p", "-f", "--mount-proc"]] {
        let command = [&["unshare"], namespaces, &["sh", "-c", script]].concat();
        let command = [&command[..], &[&folder, program.to_str().unwrap()]].concat();
        let Some((answer, samples)) = record(&scratch, &command) else {
            return;
        };
        assert!(answer.stdout.contains("done"), "{answer:?}");
        let there = samples.iter().filter(|it| it.calls("only_there")).count();
        assert!(there > 10, "{namespaces:?}: {there} of {}", samples.len());
    }
}
