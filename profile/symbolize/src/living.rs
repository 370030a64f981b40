//! Finds files by their build IDs among the mappings of living processes: a file may be deleted, have another name now, or
//! be in another mount namespace.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use otelctx_remote::process::processes;
use otelctx_remote::{Process, module};

/// Maximum duration of a search.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of files whose build IDs are read: all that a large machine runs.
const MAX_FILES: usize = 64 * 1024;

/// Mappings of living processes, by the build IDs of their files.
#[derive(Debug, Default)]
pub(crate) struct LivingFiles(HashMap<Vec<u8>, Mapped>);

/// A mapping of a process.
#[derive(Debug)]
struct Mapped {
    pid: i32,
    range: (u64, u64),
    name: Vec<u8>,
}

impl LivingFiles {
    /// Searches the processes that this user may inspect, for at most ten seconds.
    pub(crate) fn search() -> Self {
        let deadline = Instant::now() + TIMEOUT;
        let (mut found, mut known) = (HashMap::new(), HashSet::new());
        for pid in processes().unwrap_or_default() {
            let Ok(process) = Process::open(pid) else {
                continue;
            };
            // After an error, the mappings before it are used.
            let _ = process.mappings(&mut |mapping| {
                if Instant::now() >= deadline || known.len() >= MAX_FILES {
                    return ControlFlow::Break(());
                }
                let file = (mapping.device, mapping.inode);
                if !mapping.permissions.execute || mapping.inode == 0 || !known.insert(file) {
                    return ControlFlow::Continue(());
                }
                let range = (mapping.start, mapping.end);
                let opened = process.mapped_file(range, mapping.name, file.0, file.1);
                if let Some(build_id) = opened.and_then(|it| module::code_build_id(&it)) {
                    let name = mapping.name.to_vec();
                    found.insert(build_id, Mapped { pid, range, name });
                }
                ControlFlow::Continue(())
            });
        }
        Self(found)
    }

    /// The file with this build ID, if one was found and is still mapped.
    pub(crate) fn open(&self, build_id: &[u8]) -> Option<File> {
        let mapped = self.0.get(build_id)?;
        let process = Process::open(mapped.pid).ok()?;
        process.mapped_file_by_build_id(mapped.range, &mapped.name, build_id)
    }
}
