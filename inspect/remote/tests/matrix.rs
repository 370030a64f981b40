//! Every kind of program (`otelctx_fixtures::matrix`): what is found is what the program says.

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use otelctx_fixtures::Target;
use otelctx_fixtures::matrix::{self, NotBuilt, Row};
use otelctx_remote::tls::resolve;
use otelctx_remote::{
    Access, FileCache, LiveProcess, Memory, Process, Stopped, Storage, TlsVariable,
};

const NAME: &str = "otel_thread_ctx_v1";
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

#[test]
fn every_kind_of_program() {
    let (rows, not_built) = matrix::own();
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = catch_unwind(AssertUnwindSafe(|| inspect(row)))
                        .unwrap_or_else(|_| Err("the program did not run, see above".into()));
                    verdicts.lock().unwrap().push((row, verdict));
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner().unwrap();
    verdicts.sort_by_key(|(row, _)| rows.iter().position(|it| it == *row));

    // Written past the test harness, which would keep the table of a test that passes to itself.
    let table = table(&verdicts, &not_built);
    std::io::stderr()
        .lock()
        .write_all(table.as_bytes())
        .unwrap();
    let wrong = verdicts
        .iter()
        .filter(|(_, verdict)| verdict.is_err())
        .count();
    assert_eq!(wrong, 0, "rows are wrong, see the table");
    let expected = matrix::expected().unwrap_or(1);
    assert!(
        rows.len() >= expected,
        "{} rows were built, {expected} could be: `cargo xtask setup` installs the compilers",
        rows.len()
    );
}

/// The findings of a row.
type Verdict = Result<String, String>;

/// The rows, what could not be built by reason, and how many there are of each kind.
fn table(verdicts: &[(&Row, Verdict)], not_built: &[NotBuilt]) -> String {
    let mut lines = Vec::new();
    for (row, verdict) in verdicts {
        let verdict = match verdict {
            Ok(found) => format!("ok      {found}"),
            Err(why) => format!("WRONG   {why}"),
        };
        lines.push(format!("{:<64} {verdict}", row.name));
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in not_built {
        let names = reasons.entry(row.short_reason()).or_default();
        names.push(&row.name);
    }
    for (reason, names) in &reasons {
        lines.push(format!("{} not built: {reason}", names.len()));
        lines.extend(names.iter().map(|name| format!("    {name}")));
    }
    lines.push("summary".into());
    let words = ["C library", "compiler", "linker", "kind", "access model"];
    for (position, what) in words.into_iter().enumerate() {
        let word = |name: &str| {
            let ordinary = name.split(',').next().unwrap_or_default();
            ordinary
                .split(' ')
                .nth(position)
                .unwrap_or_default()
                .to_owned()
        };
        lines.push(format!(
            "    {what}: {}",
            counts(verdicts, |name| Some(word(name)))
        ));
    }
    let special = |name: &str| name.split_once(", ").map(|(_, special)| special.to_owned());
    lines.push(format!("    special: {}", counts(verdicts, special)));
    for (reason, names) in &reasons {
        lines.push(format!("    not built: {} because {reason}", names.len()));
    }
    let wrong = verdicts.iter().filter(|(_, verdict)| verdict.is_err());
    lines.push(format!(
        "{} rows, {} wrong, {} not built",
        verdicts.len(),
        wrong.count(),
        not_built.len(),
    ));
    lines
        .iter()
        .map(|line| format!("matrix: {line}\n"))
        .collect()
}

/// How many rows have each of the words that their names lead to.
fn counts(verdicts: &[(&Row, Verdict)], word: impl Fn(&str) -> Option<String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for word in verdicts.iter().filter_map(|(row, _)| word(&row.name)) {
        *counts.entry(word).or_default() += 1;
    }
    let counts = counts.iter().map(|(word, count)| format!("{word} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// Starts a program and compares; `Ok` says what was found.
fn inspect(row: &Row) -> Verdict {
    let mut target = Target::spawn(&mut row.command());
    if row.late {
        target.command("attach");
    }
    let process = Process::open(target.pid()).map_err(|error| error.to_string())?;
    let memory = process.memory().map_err(|error| error.to_string())?;
    let resolution = resolve(
        &LiveProcess::new(&process, &memory),
        &FileCache::new(),
        NAME,
    )
    .map_err(|error| error.to_string())?;
    let [variable] = &resolution.variables[..] else {
        return Err(format!("{resolution:?}"));
    };
    if Path::new(&variable.module) != row.module || !resolution.unreadable.is_empty() {
        return Err(format!("{resolution:?}"));
    }
    let found = format!(
        "{} {} exported={}",
        access(variable.access),
        storage(variable.storage()),
        variable.exported
    );
    let expected = format!("{} {} exported={}", row.access, row.storage, row.exported);
    if found != expected {
        return Err(format!("{found}, not {expected}"));
    }
    let threads = compare(&process, &memory, &target, variable)?;
    Ok(format!("{found}, {threads} threads"))
}

/// Every thread's variable is where the thread says, and holds what it says.
fn compare(
    process: &Process,
    memory: &dyn Memory,
    target: &Target,
    variable: &TlsVariable,
) -> Result<usize, String> {
    let mut attached = 0;
    for thread in &target.threads {
        let stopped =
            Stopped::stop(process, thread.tid, TIMEOUT).map_err(|error| error.to_string())?;
        let address = variable
            .address(memory, stopped.thread_pointer())
            .map_err(|error| error.to_string())?;
        let value = address
            .map(|address| memory.read_u64(address))
            .transpose()
            .map_err(|error| error.to_string())?;
        stopped.resume().map_err(|error| error.to_string())?;
        let right = match &thread.attached {
            Some(truth) => {
                attached += 1;
                address == Some(truth.slot) && value == Some(truth.record)
            }
            // A thread that never touched the variable has none, or an empty one.
            None if variable.storage() == Storage::Static => value == Some(0),
            None => value.unwrap_or(0) == 0,
        };
        if !right {
            return Err(format!("{address:x?} holds {value:x?}, not {thread:x?}"));
        }
    }
    if attached < 2 {
        return Err(format!("only {attached} threads attached"));
    }
    Ok(target.threads.len())
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Tlsdesc => "tlsdesc",
        Access::GeneralDynamic => "general-dynamic",
        Access::LocalDynamic => "local-dynamic",
        Access::InitialExec => "initial-exec",
        Access::LocalExec => "local-exec",
    }
}

fn storage(storage: Storage) -> &'static str {
    match storage {
        Storage::Static => "static",
        Storage::Dynamic => "dynamic",
    }
}
