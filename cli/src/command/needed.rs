//! The libraries that a program or library needs, found as the dynamic linker would: ld.so(8).

use std::collections::{BTreeSet, VecDeque};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::unistd::AccessFlags;
use otelctx_reader::SYMBOL;
use otelctx_reader::remote::inspect::{Contents, Inspection};
use otelctx_reader::remote::module::{self, Machine};

/// Maximum number of libraries to inspect. A large desktop program needs some 200.
pub(super) const MAX_LIBRARIES: usize = 512;
/// Maximum number of names of libraries to keep, so that hostile libraries that need ever more of
/// them take no more memory.
const MAX_NAMES: usize = 4 * MAX_LIBRARIES;
/// Maximum size of a configuration file, in bytes, and how deep they include each other.
const MAX_CONFIGURATION: usize = 1 << 16;
const MAX_INCLUDES: usize = 4;
/// Maximum number of files to inspect for a command: the interpreter of a script can be a script (execve(2)).
const MAX_INTERPRETERS: usize = 5;
/// The configuration of the dynamic linker of glibc: ldconfig(8).
const CONFIGURATION: &str = "/etc/ld.so.conf";

/// The libraries that a file needs, itself and through other libraries.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    /// The first that defines the variable, in the order in which the dynamic linker searches.
    pub(super) defining: Option<(PathBuf, Box<Inspection>)>,
    pub(super) inspected: usize,
    /// Names of the libraries that were not found or could not be read.
    pub(super) missing: Vec<String>,
    /// Names of the libraries beyond [`MAX_LIBRARIES`], up to [`MAX_NAMES`] in all.
    pub(super) skipped: Vec<String>,
}

impl Libraries {
    /// Inspects the libraries that the file at `path` needs, breadth first, until one defines the
    /// variable.
    pub(super) fn of(path: &Path, inspection: &Inspection) -> Self {
        Self::visit(path, inspection, &mut |_, found| {
            let module = found.module.as_ref();
            if module.is_some_and(|module| module.symbol.definition().is_some()) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    }

    /// Inspects the libraries that the file at `path` needs, breadth first, until `visit` breaks. The one
    /// at which it breaks becomes the defining one.
    fn visit(
        path: &Path,
        inspection: &Inspection,
        visit: &mut dyn FnMut(&Path, &Inspection) -> ControlFlow<()>,
    ) -> Self {
        let mut libraries = Self::default();
        let Some(system) = System::of(inspection.machine) else {
            libraries.missing.clone_from(&inspection.needed);
            return libraries;
        };
        let mut names: BTreeSet<String> = BTreeSet::new();
        let mut queue: VecDeque<(String, Rc<[PathBuf]>)> = VecDeque::new();
        let mut add = |queue: &mut VecDeque<_>, path: &Path, inspection: &Inspection| {
            let folders: Rc<[PathBuf]> =
                own_folders(path, inspection.search_path.as_deref()).into();
            for name in &inspection.needed {
                if names.len() < MAX_NAMES && names.insert(name.clone()) {
                    queue.push_back((name.clone(), folders.clone()));
                }
            }
        };
        add(&mut queue, path, inspection);
        for _ in 0..MAX_LIBRARIES {
            let Some((name, folders)) = queue.pop_front() else {
                break;
            };
            let Some((path, found)) = system.find(&name, &folders, inspection.machine) else {
                libraries.missing.push(name);
                continue;
            };
            libraries.inspected += 1;
            if visit(&path, &found).is_break() {
                libraries.defining = Some((path, found));
                return libraries;
            }
            add(&mut queue, &path, &found);
        }
        libraries.skipped = queue.into_iter().map(|(name, _)| name).collect();
        libraries
    }
}

/// Returns the files whose code a command will run: its program, or the interpreter of its script, and the libraries that
/// this needs. What it opens later is not known.
pub(super) fn code_files(command: &[OsString]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut next = command.first().and_then(|program| on_path(program));
    for _ in 0..MAX_INTERPRETERS {
        let Some(path) = next.take() else {
            break;
        };
        // Opening anything else can have any effect.
        if !path.is_file() {
            break;
        }
        match Contents::open(&path, SYMBOL) {
            Ok(Contents::Elf(inspection)) => {
                Libraries::visit(&path, &inspection, &mut |path, _| {
                    files.push(path.to_owned());
                    ControlFlow::Continue(())
                });
            }
            _ => next = interpreter(&path),
        }
        files.push(path);
    }
    files
}

/// Returns the file that execvp(3) executes for this name.
fn on_path(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = env::var_os("PATH")?;
    let mut files = env::split_paths(&path).map(|folder| folder.join(name));
    files.find(|file| nix::unistd::access(file, AccessFlags::X_OK).is_ok() && file.is_file())
}

/// Returns the program that the first line of a script names (execve(2)), for `env` the one that this executes.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = [0; 256];
    let read = module::open_regular(script).ok()??.read(&mut line).ok()?;
    let line = line[..read]
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let interpreter = OsStr::from_bytes(words.next()?);
    if Path::new(interpreter).file_name() != Some(OsStr::new("env")) {
        return Some(interpreter.into());
    }
    let is_program = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    on_path(OsStr::from_bytes(words.find(is_program)?))
}

/// The directories that a file itself names, DT_RUNPATH or DT_RPATH. `$ORIGIN` is its own
/// directory; only the dynamic linker knows the values of other variables.
fn own_folders(path: &Path, search_path: Option<&str>) -> Vec<PathBuf> {
    let origin = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let origin = origin.parent().unwrap_or(Path::new("/")).to_string_lossy();
    let folders = search_path.unwrap_or_default().split(':');
    folders
        .map(|folder| {
            let folder = folder.replace("${ORIGIN}", &origin);
            folder.replace("$ORIGIN", &origin)
        })
        .filter(|folder| !folder.is_empty() && !folder.contains('$'))
        .map(PathBuf::from)
        .collect()
}

/// The directories configured on this machine.
struct System {
    /// LD_LIBRARY_PATH, which comes before a file's own.
    before: Vec<PathBuf>,
    after: Vec<PathBuf>,
}

impl System {
    fn of(machine: Machine) -> Option<Self> {
        let architecture = match machine {
            Machine::X86_64 => "x86_64",
            Machine::Aarch64 => "aarch64",
            Machine::Other(_) => return None,
        };
        let variable = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let before = env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty());
        let mut after = Vec::new();
        configured(Path::new(CONFIGURATION), MAX_INCLUDES, &mut after);
        for root in ["/lib", "/usr/lib"] {
            after.push(format!("{root}/{architecture}-linux-gnu").into());
            after.push(format!("{root}64").into());
            after.push(root.into());
        }
        // The default of musl's dynamic linker, ldso/dynlink.c.
        after.push("/usr/local/lib".into());
        // That of Debian's musl, which other distributions have in the directories above.
        after.push(format!("/usr/lib/{architecture}-linux-musl").into());
        Some(Self {
            before: before.collect(),
            after,
        })
    }

    /// The library of this name for this machine. Like the dynamic linker, skips libraries for
    /// others.
    fn find(
        &self,
        name: &str,
        own: &[PathBuf],
        machine: Machine,
    ) -> Option<(PathBuf, Box<Inspection>)> {
        let read = |path: PathBuf| match Contents::open(&path, SYMBOL) {
            Ok(Contents::Elf(found)) if found.machine == machine => Some((path, found)),
            _ => None,
        };
        if name.contains('/') {
            return read(name.into());
        }
        let folders = self.before.iter().chain(own).chain(&self.after);
        folders.map(|folder| folder.join(name)).find_map(read)
    }
}

/// Adds the directories of a configuration file and of the files that it includes: ldconfig(8).
/// Supports only patterns such as `/etc/ld.so.conf.d/*.conf`, which distributions use.
fn configured(path: &Path, depth: usize, folders: &mut Vec<PathBuf>) {
    let text = match fs::read_to_string(path) {
        Ok(text) if text.len() <= MAX_CONFIGURATION => text,
        _ => return,
    };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(pattern) = line.strip_prefix("include ") else {
            folders.extend((line.starts_with('/')).then(|| line.into()));
            continue;
        };
        let Some((folder, "*.conf")) = pattern.trim().rsplit_once('/') else {
            continue;
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|it| it == "conf"));
        files.sort();
        if depth > 0 {
            for file in &files {
                configured(file, depth - 1, folders);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use otelctx_fixtures::Compiler;

    use super::*;

    #[test]
    fn a_command_runs_its_program_or_interpreter_and_their_libraries() {
        let program = env::current_exe().unwrap();
        let of = |path: &Path| code_files(&[path.into(), "argument".into()]);
        let files = of(&program);
        let is_libc = |path: &PathBuf| path.file_name().is_some_and(|it| it == "libc.so.6");
        assert!(files.iter().any(is_libc), "{files:?}");
        assert_eq!(files.last(), Some(&program));

        let folder = env::temp_dir().join(format!("otelctx-needed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let script = folder.join("script");
        let interpreted = [files, vec![script.clone()]].concat();
        let path = program.to_str().unwrap();
        for first in [
            format!("#!{path}\n"),
            format!("#! {path} -u\nprint()\n"),
            format!("#!/usr/bin/env -S A=1 {path}"),
        ] {
            fs::write(&script, &first).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            let mut found = of(&script);
            found.sort();
            let mut expected = interpreted.clone();
            expected.sort();
            assert_eq!(found, expected, "{first}");
        }
        // A script that is its own interpreter, and files that are neither.
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(of(&script), vec![script.clone(); MAX_INTERPRETERS]);
        fs::write(&script, "#!\n").unwrap();
        assert_eq!(of(&script), std::slice::from_ref(&script));
        assert_eq!(of(&folder), [] as [PathBuf; 0]);
        assert_eq!(of(Path::new("/dev/zero")), [] as [PathBuf; 0]);
        assert_eq!(code_files(&["no-such-program".into()]), [] as [PathBuf; 0]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_c_library_of_a_program_with_musl_is_its_code() {
        let Some(program) = Compiler::musl_gcc().program(&["three_starts.c"], &["-O2"]) else {
            return;
        };
        let interpreter = "/lib/ld-musl-x86_64.so.1";
        if !Path::new(interpreter).exists() {
            return eprintln!("skipped: musl is not installed in the place of distributions");
        }
        let files = code_files(&[program.as_path().into()]);
        let known = files.iter().map(|path| fs::canonicalize(path).unwrap());
        let known: Vec<PathBuf> = known.collect();
        let library = fs::canonicalize(interpreter).unwrap();
        assert!(known.contains(&library), "{known:?}");
    }

    #[test]
    fn libraries_beyond_the_limit_are_skipped_and_named() {
        let program = env::current_exe().unwrap();
        let Contents::Elf(mut inspection) = Contents::open(&program, SYMBOL).unwrap() else {
            panic!("a test is an executable");
        };
        let name = |number: usize| format!("libno-such-{number:03}.so");
        inspection.needed = (0..MAX_LIBRARIES + 2).map(name).collect();
        inspection.needed.push(name(MAX_LIBRARIES));
        let libraries = Libraries::of(&program, &inspection);
        assert_eq!(libraries.missing, inspection.needed[..MAX_LIBRARIES]);
        let skipped = &inspection.needed[MAX_LIBRARIES..MAX_LIBRARIES + 2];
        assert_eq!(libraries.skipped, skipped);
    }

    #[test]
    fn a_file_names_directories_relative_to_its_own() {
        let folders = own_folders(
            Path::new("/no/such/bin/app"),
            Some("$ORIGIN/../lib:/opt/lib::$LIB/x:${ORIGIN}"),
        );
        let expected = ["/no/such/bin/../lib", "/opt/lib", "/no/such/bin"];
        assert_eq!(folders, expected.map(PathBuf::from));
        assert!(own_folders(Path::new("app"), None).is_empty());
    }
}
