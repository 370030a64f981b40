//! Every kind of program (`otelctx_fixtures::matrix`): what is found is what the program says.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use otelctx_fixtures::Target;
use otelctx_fixtures::matrix::{self, Architecture, Row};
use otelctx_remote::tls::resolve;
use otelctx_remote::{Access, Memory, ModuleCache, Process, Stopped, Storage, TlsVariable};

const NAME: &str = "otel_thread_ctx_v1";
const TIMEOUT: Duration = Duration::from_secs(30);

/// A file with lines of rows that were built elsewhere, in place of building them here.
const PREBUILT: &str = "OTELCTX_MATRIX";

#[test]
fn every_kind_of_program() {
    let (rows, not_built) = match std::env::var_os(PREBUILT) {
        Some(file) => {
            let text = std::fs::read_to_string(&file).unwrap();
            let row = |line| Row::from_line(line).expect("a row");
            (text.lines().map(row).collect(), Vec::new())
        }
        None => matrix::build(Architecture::own()),
    };
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = catch_unwind(AssertUnwindSafe(|| look(row)))
                        .unwrap_or_else(|_| Err("the program did not run, see above".into()));
                    verdicts.lock().unwrap().push((row, verdict));
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner().unwrap();
    verdicts.sort_by_key(|(row, _)| rows.iter().position(|it| it == *row));

    // Written past the test harness, which would keep the table of a test that passes to itself.
    let mut output = std::io::stderr().lock();
    for (row, verdict) in &verdicts {
        let verdict = match verdict {
            Ok(found) => format!("ok      {found}"),
            Err(why) => format!("WRONG   {why}"),
        };
        writeln!(output, "matrix: {:<76} {verdict}", row.name).unwrap();
    }
    for row in &not_built {
        writeln!(output, "matrix: not built: {row}").unwrap();
    }
    let wrong = verdicts
        .iter()
        .filter(|(_, verdict)| verdict.is_err())
        .count();
    let expected = Architecture::own().rows();
    writeln!(
        output,
        "matrix: {} rows, {wrong} wrong, {} not built, {expected} expected",
        rows.len(),
        not_built.len()
    )
    .unwrap();
    assert_eq!(wrong, 0, "rows are wrong, see the table");
    assert!(
        rows.len() >= expected,
        "{} rows were built, {expected} could be: `cargo xtask setup` installs the compilers",
        rows.len()
    );
}

/// Starts a program and compares; `Ok` says what was found.
fn look(row: &Row) -> Result<String, String> {
    let mut target = Target::spawn(&mut row.command());
    if row.late {
        target.command("attach");
    }
    let process = Process::open(target.pid()).map_err(|error| error.to_string())?;
    let memory = process.memory().map_err(|error| error.to_string())?;
    let resolution = resolve(&process, &memory, &mut ModuleCache::new(), NAME)
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
