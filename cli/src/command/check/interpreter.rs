//! Files that run other programs: an interpreter, or a bundle of one with a program.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use otelctx_reader::remote::inspect::Inspection;
use otelctx_reader::remote::module::{Module, Symbol};

use super::finding::Finding;
use crate::output::text::own_name;

/// Languages, the start of the name of a library that contains the interpreter, and a function that
/// each interpreter exports to extensions. Erlang's is never in a library.
const LANGUAGES: [(&str, Option<&str>, &str); 7] = [
    ("Python", Some("libpython"), "Py_IsInitialized"),
    ("JavaScript", Some("libnode.so"), "napi_module_register"),
    ("Java", Some("libjli.so"), "JNI_CreateJavaVM"),
    ("Ruby", Some("libruby"), "rb_define_method"),
    ("PHP", Some("libphp"), "zend_register_functions"),
    ("Perl", Some("libperl.so"), "Perl_newXS"),
    ("Erlang", None, "enif_make_atom"),
];

/// The mark at the end of a bundle of PyInstaller (bootloader/src/pyi_archive.c), and the number of
/// bytes before the end of the file that it is searched in.
const PYINSTALLER: &[u8] = b"MEI\x0c\x0b\x0a\x0b\x0e";
const TAIL: u64 = 1 << 16;
/// The mark of an AppImage, at this offset (AppImage specification, type 2).
const APP_IMAGE: (usize, &[u8]) = (8, b"AI\x02");

/// Returns a note in place of the finding that a file does not have the variable, if the file runs other
/// programs: their packages bring it.
pub(super) fn of_file(path: &Path, inspection: &Inspection) -> Option<Finding> {
    let file = File::open(path).ok()?;
    let runs = match bundle(&file) {
        Some(kind) => format!("it is a bundle ({kind}) that unpacks its program"),
        None => format!("it runs programs in {}", language(&file, inspection)?),
    };
    let text = format!("{runs}: a file cannot show whether that publishes its contexts");
    let hint = format!("Check the running process:  `{} check PID`", own_name());
    Some(Finding::note("interpreter", text).hint(hint))
}

fn language(file: &File, inspection: &Inspection) -> Option<&'static str> {
    let exports = |name: &str| {
        let module = Module::of_file(file, name);
        module.is_some_and(|it| it.symbol == Symbol::NotThreadLocal)
    };
    let needs = |library: &str| inspection.needed.iter().any(|it| it.starts_with(library));
    let mut languages = LANGUAGES.iter();
    let found = languages.find(|(_, library, name)| library.is_some_and(needs) || exports(name));
    found.map(|(language, ..)| *language)
}

/// Returns what made the bundle, if it is one.
fn bundle(file: &File) -> Option<&'static str> {
    let mut file = file;
    let (offset, mark) = APP_IMAGE;
    let mut head = [0; APP_IMAGE.0 + APP_IMAGE.1.len()];
    file.read_exact(&mut head).ok()?;
    if &head[offset..] == mark {
        return Some("AppImage");
    }
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let mut windows = tail.windows(PYINSTALLER.len());
    windows.any(|it| it == PYINSTALLER).then_some("PyInstaller")
}
