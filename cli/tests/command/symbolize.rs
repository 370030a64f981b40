//! `otelctx symbolize`: names for a recording without names.

use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use otelctx_fixtures::{Compiler, copy_program};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Mapping, Module, ProcessFacts, Sample,
};
use otelctx_profile::{
    Clock, Format, Function, Identity, Options, Profile, Recording, SymbolQuery, Symbolizer,
};
use otelctx_symbolize::Symbols;
use serde_json::json;

use crate::run::{Answer, Scratch, command, given_time, otelctx};

/// Functions of the program, of which one is always on the stack.
const FUNCTIONS: [&str; 2] = ["main", "fibonacci"];

/// A program that is killed when dropped.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    pub(crate) fn start(path: &str) -> Self {
        let mut command = Command::new(path);
        command.args(["1000000000", "r"]).stdin(Stdio::null());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The functions in a recording.
fn functions(file: &str) -> Vec<String> {
    let report = otelctx(&["report", file, "--json"]).expect(0).json();
    let functions = report["by_function"].as_array().unwrap().iter();
    let name = |it: &serde_json::Value| it["name"].as_str().unwrap().to_owned();
    functions.map(name).collect()
}

fn symbolize(file: &str, output: &str, more: &[&str]) -> Answer {
    let mut arguments = vec!["symbolize", file, "-o", output];
    arguments.extend(more);
    otelctx(&arguments).expect(0)
}

fn are_named(found: &[String]) -> bool {
    let is_found = |function: &&str| found.iter().any(|it| it == function);
    FUNCTIONS.iter().all(is_found)
}

fn assert_named(file: &str) {
    let found = functions(file);
    assert!(are_named(&found), "{found:?}");
}

/// Names messages one by one, as a Collector's file has them. One that cannot be named is left as it was.
fn assert_stream_is_named(scratch: &Scratch, file: &str) {
    let message = fs::read(file).unwrap();
    let messages = [&message[..], b"\xff", &message];
    let [input, output] = ["in", "out.otlp"].map(|it| scratch.path(it));
    let framed = messages.map(|it| [&(it.len() as u32).to_be_bytes()[..], it].concat());
    fs::write(&input, framed.concat()).unwrap();
    let mut stream = crate::run::command(&["symbolize", "--stream"]);
    stream.stdin(fs::File::open(&input).unwrap());
    let answer = stream.output().unwrap();
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{said}");
    assert!(
        said.contains(" in 3 messages; 1 left as before\n"),
        "{said}"
    );
    let mut rest = &answer.stdout[..];
    for original in messages {
        let (size, behind) = rest.split_first_chunk().unwrap();
        let (message, behind) = behind.split_at(u32::from_be_bytes(*size) as usize);
        rest = behind;
        if original == b"\xff" {
            assert_eq!(message, original);
        } else {
            fs::write(&output, message).unwrap();
            assert_named(&output);
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn a_recording_gets_its_names_from_the_recorded_files_only() {
    let flags = ["-O2", "-fno-omit-frame-pointer", "-Wl,--build-id"];
    let Some(built) = Compiler::gcc().program(&["stacks.c"], &flags) else {
        return;
    };
    let scratch = Scratch::new("symbolize");
    let (program, file) = (scratch.path("program"), scratch.path("profile.otlp"));
    let (named, files) = (scratch.path("named.otlp"), scratch.path("files"));
    copy_program(&built, &program);
    let running = Program::start(&program);
    let pid = running.0.id().to_string();
    given_time(|seconds| {
        let record = [
            "record",
            "-p",
            &pid,
            "-d",
            seconds,
            "--no-symbols",
            "-o",
            &file,
        ];
        otelctx(&record).expect(0);
        let found = functions(&file);
        assert!(!found.iter().any(|it| FUNCTIONS.contains(&it.as_str())));
        // The stacks may end before it, or none may be of one of the functions.
        if !found.contains(&program) {
            return Err(found);
        }
        symbolize(&file, &named, &[]);
        let found = functions(&named);
        match are_named(&found) {
            true => Ok(()),
            false => Err(found),
        }
    });
    let text = symbolize(&file, &named, &[]).stdout;
    assert!(text.starts_with("named "), "{text}");
    assert!(!text.contains("not found"), "{text}");
    assert_named(&named);
    assert_stream_is_named(&scratch, &file);
    // Its further parts belong to it.
    let [second, named_second] = [&file, &named].map(|it| it.replace(".otlp", ".2.otlp"));
    let addresses = |json: &serde_json::Value| json["addresses"].as_u64().unwrap();
    let one = symbolize(&file, &named, &["--json"]).json();
    fs::copy(&file, &second).unwrap();
    let both = symbolize(&file, &named, &["--json"]).json();
    assert_eq!((&one["files"], &both["files"]), (&json!(1), &json!(2)));
    assert_eq!(addresses(&both), 2 * addresses(&one), "{both}");
    let text = symbolize(&file, &named, &[]).stdout;
    assert!(
        text.contains(&format!("{named} and 1 further file\n")),
        "{text}"
    );
    assert_named(&named_second);
    let samples =
        |file: &str| otelctx(&["report", file, "--json"]).expect(0).json()["samples"].clone();
    let whole = samples(&named);
    for path in [second, named_second] {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(whole.as_u64(), samples(&named).as_u64().map(|one| 2 * one));
    // Replaced, as an upgrade does it, with or without a copy: the process still has it mapped.
    let old = scratch.path("program.old");
    fs::rename(&program, &old).unwrap();
    fs::copy("/bin/true", &program).unwrap();
    for is_deleted in [false, true] {
        if is_deleted {
            fs::remove_file(&old).unwrap();
        }
        let answer = symbolize(&file, &named, &["--json"]).json();
        assert_eq!(answer["missing"], json!([]), "{answer}");
        assert_eq!(answer["file"], json!(named), "{answer}");
        assert_named(&named);
    }
    drop(running);
    let answer = symbolize(&file, &named, &["--json"]).json();
    assert_eq!(answer["missing"][0]["path"], json!(program), "{answer}");
    let found = functions(&named);
    assert!(!found.iter().any(|it| FUNCTIONS.contains(&it.as_str())));
    let text = symbolize(&file, &named, &[]).stdout;
    let line = format!("\n  not found  {program}, build ID ");
    assert!(text.contains(&line), "{text}");
    fs::create_dir(&files).unwrap();
    fs::copy(built, Path::new(&files).join("program")).unwrap();
    let text = otelctx(&["symbolize", &file, "--debug-dir", &files]);
    assert!(!text.expect(0).stdout.contains("not found"));
    assert_named(&file);
}

#[test]
fn a_stripped_file_is_listed_and_so_is_another_format() {
    let flags = ["-O2", "-s", "-Wl,--build-id"];
    let Some(program) = Compiler::gcc().program(&["stacks.c"], &flags) else {
        return;
    };
    let scratch = Scratch::new("symbolize-stripped");
    let (file, named) = (scratch.path("profile.otlp"), scratch.path("named.otlp"));
    let program = program.to_str().unwrap();
    let running = Program::start(program);
    let pid = running.0.id().to_string();
    given_time(|seconds| {
        let record = ["record", "--no-symbols", "-p", &pid, "-d", seconds];
        otelctx(&[&record[..], &["-o", &file]].concat()).expect(0);
        let found = functions(&file);
        found
            .iter()
            .any(|it| it == program)
            .then_some(())
            .ok_or(found)
    });
    let answer = symbolize(&file, &named, &["--json"]).json();
    let listed = &answer["without_names"][0];
    assert_eq!(listed["path"], program, "{answer}");
    let number = |of: &serde_json::Value| of.as_u64().unwrap();
    let without = answer["without_names"].as_array().unwrap().iter();
    let without: u64 = without.map(|it| number(&it["addresses"])).sum();
    assert_eq!(
        number(&answer["named"]) + without,
        number(&answer["addresses"])
    );
    let text = symbolize(&file, &named, &[]).stdout;
    let build_id = listed["build_id"].as_str().unwrap();
    let line = format!("\n  no names   {program}, build ID {build_id}: ");
    assert!(text.contains(&line), "{text}");

    let graph = scratch.path("graph.svg");
    let answer = otelctx(&["symbolize", &file, "-o", &graph]).expect(2);
    assert!(
        answer.stderr.contains("symbolize writes OTLP alone"),
        "{answer:?}"
    );
}

#[test]
fn a_file_that_cannot_get_names_later_is_pointed_out() {
    let scratch = Scratch::new("symbolize-later");
    let (graph, file) = (scratch.path("graph.svg"), scratch.path("profile.otlp"));
    let warning = "names can be added to .otlp files alone";
    for (output, is_warned) in [(&graph, true), (&file, false)] {
        let record = ["record", "--no-symbols", "-o", output, "--", "true"];
        let answer = otelctx(&record).expect(0);
        assert_eq!(answer.stderr.contains(warning), is_warned, "{answer:?}");
    }
}

#[test]
fn what_is_no_recording_of_this_command_is_refused() {
    let scratch = Scratch::new("symbolize-other");
    let file = scratch.path("other.otlp");
    fs::write(&file, "{}").unwrap();
    let answer = otelctx(&["symbolize", &file]).expect(2);
    assert!(answer.stderr.contains("it is JSON"), "{answer:?}");
    assert_eq!(fs::read(&file).unwrap(), b"{}");
}

/// The size of a page, in bytes: files are mapped that far apart.
const PAGE: u64 = 4096;

/// Names nothing, and knows that every file is the same.
struct OneFile(Identity);

impl Symbolizer for OneFile {
    fn functions(&mut self, _: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        vec![Vec::new(); addresses.len()]
    }

    fn identity(&mut self, _: SymbolQuery<'_>) -> Identity {
        self.0.clone()
    }
}

/// A sample in each of the files in `folder`, whose names are numbers below `count`.
fn recording(folder: &str, count: u64, offset: u64) -> Recording {
    let mut catalog = Catalog::new();
    let mapping = |index: u64| Mapping {
        start: (index + 1) * PAGE,
        end: (index + 2) * PAGE,
        offset: offset - offset % PAGE,
        module: catalog.module(Module {
            path: format!("{folder}/{index}"),
            inode: index + 1,
            ..Module::default()
        }),
        since: 0,
    };
    let mappings = (0..count).map(mapping).collect();
    let process = catalog.add_process(ProcessFacts {
        // No process has this ID.
        pid: i32::MAX,
        mappings,
        ..ProcessFacts::default()
    });
    let thread = catalog.thread(process, 1, "t");
    let kernel_stack = catalog.native_stack(&[]);
    let sample = |index: u64| Sample {
        time: index,
        cpu: 0,
        thread,
        event: Event::OnCpu,
        found: Found::NotPublished,
        gil: None,
        user_stack: catalog.native_stack(&[(index + 1) * PAGE + offset % PAGE]),
        stack_end: None,
        kernel_stack,
    };
    Recording {
        samples: (0..count).map(sample).collect(),
        clock: Clock {
            start: 0,
            end: 1 << 30,
            start_unix: 0,
        },
        catalog,
        period: NonZeroU64::MIN,
        counts: Counts::default(),
    }
}

/// The offset of `main` in a program that is mapped as a whole at address 0.
fn offset_of_main(program: &Path) -> u64 {
    let output = Command::new("nm").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.ends_with(" T main")).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

/// More files than a process may have open at first, and than are kept open while recording.
#[test]
fn any_number_of_files_is_named() {
    const COUNT: u64 = 600;
    let flags = ["-O2", "-Wl,--build-id=none", "-pie", "-fPIE"];
    let Some(program) = Compiler::gcc().program(&["stacks.c"], &flags) else {
        return;
    };
    let scratch = Scratch::new("symbolize-many");
    let (files, file) = (scratch.path("files"), scratch.path("profile.otlp"));
    fs::create_dir(&files).unwrap();
    for index in 0..COUNT {
        symlink(&program, format!("{files}/{index}")).unwrap();
    }
    let module = Module {
        path: program.to_str().unwrap().to_owned(),
        inode: fs::metadata(&program).unwrap().ino(),
        device: device_of(&program),
        ..Module::default()
    };
    let query = ProcessFacts::default();
    let identity = Symbols::new().identity(SymbolQuery::new(&module, &query));
    assert!(identity.htlhash.is_some());
    let recording = recording("/recorded", COUNT, offset_of_main(&program));
    let profile = Profile::new(recording, &mut OneFile(identity));
    let mut bytes = Vec::new();
    let written = profile.write(Format::Otlp, &Options::default(), &mut bytes);
    written.unwrap();
    fs::write(&file, bytes).unwrap();
    let mut symbolize = command(&["symbolize", &file, "--debug-dir", &files, "--json"]);
    let few = || {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(setrlimit(Resource::RLIMIT_NOFILE, 256, most)?)
    };
    // SAFETY: system calls, which may be made between fork and exec.
    unsafe { symbolize.pre_exec(few) };
    let answer = Answer::of(symbolize.output().unwrap()).expect(0).json();
    let numbers = ["addresses", "named"].map(|name| answer[name].as_u64());
    assert_eq!(numbers, [Some(COUNT), Some(COUNT)], "{answer}");
}

/// The device as a module has it.
fn device_of(file: &Path) -> u64 {
    let device = fs::metadata(file).unwrap().dev();
    u64::from(libc::major(device)) << 32 | u64::from(libc::minor(device))
}
