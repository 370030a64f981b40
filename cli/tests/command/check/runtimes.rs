//! Processes whose language runtime is known, and which publish nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Node, Target};

use super::{assert_findings, check, finding};
use crate::run::Scratch;

const WAIT: &str = "print('ready', flush=True); import sys; sys.stdin.read()";

/// The hint of a process that publishes nothing.
fn hint(target: &Target) -> String {
    let answer = check(target.pid().to_string());
    // Nothing about variables of modules, which say nothing about Python.
    assert_findings(&answer, &["problem no-process-context", "ok runtime"]);
    finding(&answer, "no-process-context")["hint"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// An interpreter in a virtual environment of its own, whose directory for packages is empty.
fn environment(interpreter: &Interpreter, root: &Path) -> String {
    let version: Vec<&str> = interpreter.version.splitn(3, '.').collect();
    let packages = root.join(format!(
        "lib/python{}.{}/site-packages",
        version[0], version[1]
    ));
    fs::create_dir_all(&packages).unwrap();
    fs::create_dir_all(root.join("bin")).unwrap();
    symlink(&interpreter.path, root.join("bin/python")).unwrap();
    let home = interpreter.path.parent().unwrap();
    let settings = format!(
        "home = {}\ninclude-system-site-packages = false\n",
        home.display()
    );
    fs::write(root.join("pyvenv.cfg"), settings).unwrap();
    packages.to_str().unwrap().to_owned()
}

/// It has no addon, which other commands recognize it by.
#[test]
fn node_has_its_own_way_without_an_addon() {
    let Some(node) = Node::find() else {
        return;
    };
    let code = "console.log('ready'); process.stdin.resume()";
    let mut command = node.program();
    let target = Target::spawn(command.args(["-e", code]).stdin(Stdio::piped()));
    let answer = check(target.pid().to_string());
    assert_findings(&answer, &["problem no-process-context", "ok runtime"]);
    let hint = finding(&answer, "no-process-context")["hint"].clone();
    let hint = hint.as_str().unwrap();
    assert!(
        hint.starts_with("Start it with  node --import otelctx/register"),
        "{hint}"
    );
    assert!(hint.contains("this is 24."), "{hint}");
}

#[test]
fn python_has_its_own_way_and_a_package_that_is_missing_is_named() {
    for (index, interpreter) in ["3.11", "3.12", "3.14"]
        .iter()
        .flat_map(|it| Interpreter::with_version(it))
        // That which setup installs is started by a script.
        .filter(|it| fs::read(&it.path).unwrap().starts_with(b"\x7fELF"))
        .enumerate()
    {
        let scratch = Scratch::new(&format!("check-python-{index}"));
        let packages = environment(&interpreter, scratch.folder());
        let path = scratch.path("bin/python");
        let start = |change: &dyn Fn(&mut Command)| {
            let mut command = Command::new(&path);
            command.args(["-c", WAIT]).env_remove("PYTHONPATH");
            command.env_remove("OTEL_PYTHON_CONTEXT");
            change(&mut command);
            Target::spawn(&mut command)
        };
        let missing = format!(
            "The package otelctx is not in {packages}:  {path} -m pip install \
             PATH/TO/otelctx/publish/python"
        );
        let plain = start(&|_| {});
        let said = hint(&plain);
        let way = "Start it with  OTEL_PYTHON_CONTEXT=otelctx, which publishes the spans";
        assert!(said.starts_with(way), "{said}");
        assert!(said.ends_with(&missing), "{said}: {missing}");
        assert!(!said.contains("Rust") && !said.contains("Node"), "{said}");
        // By its name alone, or by a path relative to its directory.
        let by_name = start(&|command| {
            *command = Command::new("python");
            command.args(["-c", WAIT]).env("PATH", scratch.path("bin"));
        });
        let said = hint(&by_name);
        assert!(
            said.contains(&format!(" not in {packages}:  python -m")),
            "{said}"
        );
        let relative = start(&|command| {
            *command = Command::new("sh");
            command
                .args(["-c", "exec bin/python -c \"$0\"", WAIT])
                .current_dir(scratch.folder());
        });
        let said = hint(&relative);
        assert!(
            said.contains(&format!(" not in {packages}:  bin/python -m")),
            "{said}"
        );
        let set = start(&|command| _ = command.env("OTEL_PYTHON_CONTEXT", "otelctx"));
        let said = hint(&set);
        assert!(
            said.starts_with("OTEL_PYTHON_CONTEXT=otelctx is set: "),
            "{said}"
        );
        assert!(said.ends_with(&missing), "{said}");
        // It is there: in another directory that is searched, or in this one, in each form.
        let elsewhere = scratch.path("elsewhere");
        fs::create_dir_all(Path::new(&elsewhere).join("otelctx")).unwrap();
        let found = start(&|command| _ = command.env("PYTHONPATH", &elsewhere));
        assert!(!hint(&found).contains("not in"));
        for entry in ["otelctx", "otelctx-0.1.0.dist-info", "otelctx.egg-link"] {
            let entry = Path::new(&packages).join(entry);
            fs::create_dir(&entry).unwrap();
            assert!(!hint(&plain).contains("not in"));
            fs::remove_dir(&entry).unwrap();
        }
    }
}
