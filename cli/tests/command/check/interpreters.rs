//! Files whose programs publish: a file cannot show that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Compiler, Node};

use super::{assert_findings, check, compile, text};
use crate::run::{Scratch, otelctx};

/// The interpreters of this machine, with their languages.
fn installed() -> Vec<(PathBuf, &'static str)> {
    let pythons = ["3.9", "3.11", "3.12", "3.13"]
        .iter()
        .flat_map(|it| Interpreter::installed(it));
    let mut found: Vec<_> = pythons.map(|it| (it.path, "Python")).collect();
    found.extend(Node::installed("24").map(|it| (it.program().get_program().into(), "JavaScript")));
    let others = [
        ("java", "Java"),
        ("ruby", "Ruby"),
        ("php", "PHP"),
        ("perl", "Perl"),
    ];
    found.extend(others.map(|(name, language)| (Path::new("/usr/bin").join(name), language)));
    found.retain(|(path, _)| fs::read(path).is_ok_and(|it| it.starts_with(b"\x7fELF")));
    found
}

#[track_caller]
fn assert_note(path: &Path, runs: &str) {
    let answer = check(path);
    assert_findings(&answer, &["note interpreter"]);
    let said = text(&answer, "interpreter");
    assert!(said.starts_with(runs), "{}: {said}", path.display());
    let hint = otelctx(&[Path::new("check"), path]).expect(0).stdout;
    assert!(hint.contains(" check PID`\n"), "{hint}");
}

#[test]
fn interpreters_lead_to_their_processes() {
    for (path, language) in installed() {
        assert_note(&path, &format!("it runs programs in {language}: "));
    }
    // Others, by what they export to extensions, and by their library.
    let gcc = Compiler::gcc();
    for (function, language) in [
        ("Py_IsInitialized", "Python"),
        ("napi_module_register", "JavaScript"),
        ("JNI_CreateJavaVM", "Java"),
        ("rb_define_method", "Ruby"),
        ("zend_register_functions", "PHP"),
        ("Perl_newXS", "Perl"),
        ("enif_make_atom", "Erlang"),
    ] {
        let code = format!("int {function}(void) {{ return 1; }}");
        let Some(library) = compile(&format!("interpreter-{function}"), &code, &[]) else {
            return;
        };
        assert_note(&library, &format!("it runs programs in {language}: "));
    }
    let name = "-Wl,-soname,libpython3.99.so.1.0";
    let Some(library) = compile("libpython", "int python_main(void) { return 0; }", &[name]) else {
        return;
    };
    let folder = library.parent().unwrap().display().to_string();
    let flags = [
        "-Wl,--no-as-needed".to_owned(),
        library.display().to_string(),
        format!("-L{folder}"),
    ];
    let program = gcc.program(&["threads.c"], &flags).unwrap();
    assert_note(&program, "it runs programs in Python: ");
}

#[test]
fn bundles_lead_to_their_processes() {
    let scratch = Scratch::new("check-bundles");
    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let bytes = fs::read(program).unwrap();
    let mark = b"MEI\x0c\x0b\x0a\x0b\x0e";
    let archive = [&b"x".repeat(100_000)[..], mark, &[0; 80]].concat();
    let appended = PathBuf::from(scratch.path("appended"));
    fs::write(&appended, [&bytes[..], &archive].concat()).unwrap();
    assert_note(&appended, "it is a bundle (PyInstaller)");
    // As a section, where there is objcopy: what PyInstaller does.
    let [plain, section, content] = ["plain", "section", "content"].map(|it| scratch.path(it));
    fs::write(&plain, &bytes).unwrap();
    fs::write(&content, &archive).unwrap();
    let mut objcopy = Command::new("objcopy");
    objcopy
        .arg(format!("--add-section=pydata={content}"))
        .args([&plain, &section]);
    assert!(objcopy.status().unwrap().success());
    assert_note(Path::new(&section), "it is a bundle (PyInstaller)");
    let image = PathBuf::from(scratch.path("image"));
    let mut marked = bytes;
    marked[8..11].copy_from_slice(b"AI\x02");
    fs::write(&image, marked).unwrap();
    assert_note(&image, "it is a bundle (AppImage)");
    // Without a mark, it is a program that publishes nothing.
    assert_findings(&check(&plain), &["problem absent"]);
    let script = scratch.path("script");
    fs::write(&script, "#!/usr/bin/env python3\n").unwrap();
    let answer = otelctx(&["check", &script]).expect(2);
    assert!(
        answer
            .stderr
            .contains(" check PID` of the process that runs it"),
        "{answer:?}"
    );
}
