//! One process as the sampler knows it: what its threads' slots are found by, the names that its
//! records refer to, and what the catalog is told of it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader as reader;
use otelctx_sample::format::KeyMap;
use otelctx_sample::{Catalog, Mapping, Module, ProcessFacts, ProcessId};
use reader::FileCache;
use reader::remote;
use reader::remote::tls;
use reader::{ContextState, ProcessContext, ThreadSupport, Unreadable};

use crate::ebpf::{MAX_PLACES, Place, Target, storage};
use crate::{Error, monotonic};
use otelctx_track::Facts;
use otelctx_track::stat::has_ended;

/// How long to wait before a process is looked at again: at first, and at most. A process that
/// starts publishes soon or never.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A look that takes longer is dear, as those at processes with very many mappings are: so many times
/// as long passes until the next, whatever else there is to look at waits no longer for one.
const DEAR: Duration = Duration::from_millis(5);
const REST: u32 = 50;
/// So is it to read names while a process updates them, which it may never end to do.
const DEAR_NAMES: Duration = Duration::from_millis(1);
/// What the sizes of its memory can't tell, a context in memory that was there before, one look in
/// so many finds.
const LOOK_ANYWAY: u32 = 16;
/// Key maps that are kept of a process: samples of earlier configurations may be on their way.
const MOST_KEY_MAPS: usize = 4;
/// Executable mappings that are kept of a process.
const MOST_MAPPINGS: usize = 16 * 1024;

/// Whether a process can be looked at that was asked for.
pub(crate) fn may_be_looked_at(process: &remote::Process) -> Result<(), Error> {
    let pid = process.pid();
    if process.status()?.kernel_thread {
        return Err(Error::KernelThread { pid });
    }
    if has_ended(pid) {
        return Err(remote::Error::NoSuchProcess { pid }.into());
    }
    process.memory()?;
    Ok(())
}

/// What a look at a process says of its threads' contexts.
#[derive(Clone, Debug)]
pub(crate) enum Publishing {
    /// They can be read.
    Threads(reader::ThreadVariables),
    /// It publishes none.
    Nothing,
    /// It publishes something that can't be read.
    Unreadable,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Known {
    pid: i32,
    /// `None` if the process had ended before it could be looked at.
    reader: Option<reader::Process>,
    /// How long a look may take, where all processes are looked at.
    scan_timeout: Option<Duration>,
    /// Once a sample of it was seen.
    id: Option<ProcessId>,
    /// By configuration, the newest last.
    keys: Vec<(u32, KeyMap)>,
    /// Until then they are not read again for a record's sake.
    keys_rest: Instant,
    pub(crate) publishing: Publishing,
    context: Option<Arc<ProcessContext>>,
    /// Whether its program has been looked for contexts since it was executed.
    pub(crate) looked: bool,
    look: Schedule,
    sizes: Sizes,
    /// Since the last look.
    sampled: bool,
    /// Its last thread ends. There may still be samples of that.
    pub(crate) exits: bool,
    mappings: Schedule,
    /// Executable memory, in the order of the addresses.
    code: Vec<(u64, u64)>,
}

/// How much memory a process has mapped. Whoever begins to publish maps memory for it, and names it
/// at once or a little later: as long as the sizes stay the same there is hardly anything to look
/// for.
#[derive(Debug, Default)]
struct Sizes {
    file: Option<remote::process::SizesFile>,
    last: remote::process::Sizes,
    /// Times that they were the same in a row.
    same: u32,
}

impl Sizes {
    /// Notes them. Whether it is unlikely that anything has come since the last look.
    fn are_settled(&mut self, process: &remote::Process) -> bool {
        let now = match &self.file {
            Some(file) => file.read().ok(),
            None => process.sizes().ok().map(|(file, sizes)| {
                self.file = Some(file);
                sizes
            }),
        };
        let Some(now) = now else {
            // Perhaps only the thread that it was opened for has ended.
            self.file = None;
            return false;
        };
        let is_same = std::mem::replace(&mut self.last, now) == now;
        self.same = if is_same { self.same + 1 } else { 0 };
        self.same > 1 && !self.same.is_multiple_of(LOOK_ANYWAY)
    }
}

/// When to do something again that may bring nothing new.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    next: Instant,
    pause: Duration,
}

impl Schedule {
    fn now() -> Self {
        Self {
            next: Instant::now(),
            pause: SHORTEST_PAUSE,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Plans the next time, later each time that nothing new was found, given what it took.
    fn plan(&mut self, now: Instant, took: Duration, fruitful: bool) {
        self.pause = if fruitful {
            SHORTEST_PAUSE
        } else {
            (self.pause * 2).min(LONGEST_PAUSE)
        };
        let rest = if took > DEAR { took * REST } else { took };
        self.next = now + self.pause.max(rest);
    }
}

impl Known {
    pub(crate) fn open(
        pid: i32,
        options: reader::Options,
        modules: FileCache,
        scan_timeout: Option<Duration>,
    ) -> Result<Self, reader::Error> {
        let reader = reader::Process::with_files(pid, options, modules)?;
        let mut known = Self {
            reader: Some(reader),
            scan_timeout,
            looked: false,
            ..Self::ended(pid)
        };
        // It has no memory that anything could be found in.
        known.looked = known.is_kernel_thread();
        Ok(known)
    }

    /// A process of which nothing but its samples is left.
    pub(crate) fn ended(pid: i32) -> Self {
        Self {
            pid,
            reader: None,
            scan_timeout: None,
            id: None,
            keys: Vec::new(),
            keys_rest: Instant::now(),
            publishing: Publishing::Nothing,
            context: None,
            looked: true,
            look: Schedule::now(),
            sizes: Sizes::default(),
            sampled: false,
            exits: false,
            mappings: Schedule::now(),
            code: Vec::new(),
        }
    }

    fn is_kernel_thread(&self) -> bool {
        let status = self.reader.as_ref().map(|reader| reader.target().status());
        matches!(status, Some(Ok(status)) if status.kernel_thread)
    }

    /// Whether the process still exists.
    pub(crate) fn exists(&self) -> bool {
        self.reader
            .as_ref()
            .is_some_and(|reader| reader.target().exists())
    }

    /// Whether nothing of it runs any longer. It exists until its parent has waited for it.
    pub(crate) fn has_ended(&self) -> bool {
        !self.exists() || has_ended(self.pid)
    }

    /// Whether the same code is mapped as when it was looked at.
    pub(crate) fn is_as_looked_at(&self) -> bool {
        let unchanged = self.reader.as_ref().map(reader::Process::modules_unchanged);
        matches!(unchanged, Some(Ok(true)))
    }

    /// Whether it is time to look at it again, and there is a reason to: it has been sampled since.
    pub(crate) fn wants_look(&self, now: Instant) -> bool {
        self.sampled && !self.exits && self.look.is_due(now)
    }

    /// Notes that a sample of it was seen.
    pub(crate) fn sampled(&mut self) {
        self.sampled = true;
    }

    /// Where its threads keep their contexts.
    pub(crate) fn places(&self) -> Vec<Place> {
        places_of(&self.publishing)
    }

    /// Has it looked at soon.
    pub(crate) fn look_soon(&mut self) {
        self.look = Schedule::now();
    }

    /// Looks whether and how its threads publish contexts. Whether that differs from the last time.
    pub(crate) fn look(&mut self) -> bool {
        let before = self.looked.then(|| self.places());
        let begin = Instant::now();
        // Only where all processes are looked at is that too dear. One that publishes, and not yet
        // its threads', is asked by one read.
        if let Some(reader) = &self.reader
            && self.scan_timeout.is_some()
            && self.looked
            && self.context.is_none()
            && matches!(self.publishing, Publishing::Nothing)
            && !reader.options().any_schema
            && self.sizes.are_settled(reader.target())
        {
            self.look.plan(begin, Duration::ZERO, false);
            self.sampled = false;
            return false;
        }
        let (context, publishing) = match &mut self.reader {
            Some(reader) => {
                reader.set_deadline(self.scan_timeout.map(|scan_timeout| begin + scan_timeout));
                let found = look(reader);
                reader.set_deadline(None);
                found
            }
            None => (None, Publishing::Nothing),
        };
        let changed =
            context != self.context || before.as_deref() != Some(&places_of(&publishing)[..]);
        let now = Instant::now();
        self.look.plan(now, now - begin, changed);
        (self.looked, self.sampled) = (true, false);
        (self.context, self.publishing) = (context, publishing);
        changed
    }

    /// The process executes another program: nothing of what was known holds any longer.
    pub(crate) fn executed(&mut self) {
        self.reset_catalog();
        self.looked = false;
        self.publishing = Publishing::Nothing;
        self.context = None;
        self.keys.clear();
        self.sizes = Sizes::default();
        self.look = Schedule::now();
    }

    /// Another catalog comes, which knows nothing of it.
    pub(crate) fn reset_catalog(&mut self) {
        self.id = None;
        self.code.clear();
        self.mappings = Schedule::now();
    }

    /// Notes which names the records refer to that are read under a configuration.
    pub(crate) fn set_keys(&mut self, serial: u32, keys: KeyMap) {
        self.keys.retain(|(known, _)| *known != serial);
        if self.keys.len() >= MOST_KEY_MAPS {
            self.keys.remove(0);
        }
        self.keys.push((serial, keys));
    }

    /// The names for records that were read under a configuration.
    pub(crate) fn keys(&self, serial: u32) -> Option<&KeyMap> {
        let mut keys = self.keys.iter().rev();
        keys.find(|(known, _)| *known == serial)
            .map(|(_, keys)| keys)
    }

    /// Reads the names again that records of this configuration refer to; false if there are no new
    /// ones, or if it took so long last time that this has to wait.
    pub(crate) fn refresh_keys(&mut self, serial: u32) -> bool {
        let begin = Instant::now();
        if begin < self.keys_rest {
            return false;
        }
        let grown = self.read_keys(serial);
        let took = begin.elapsed();
        match grown {
            Some(true) => return true,
            Some(false) if took <= DEAR_NAMES => {}
            _ => self.keys_rest = begin + took.max(DEAR_NAMES) * REST,
        }
        false
    }

    /// Whether there are more names; `None` if there is nothing to read them from.
    fn read_keys(&mut self, serial: u32) -> Option<bool> {
        let state = self.reader.as_mut().map(reader::Process::context);
        let Some(Ok(ContextState::Published(context))) = state else {
            return None;
        };
        let (Ok(Some(new)), Some(old)) = (&context.keys, self.keys(serial)) else {
            return None;
        };
        // Key maps only grow; another one is another program's.
        let grown = new.names().len() > old.names().len() && new.names().starts_with(old.names());
        if grown {
            self.set_keys(serial, new.clone());
        }
        Some(grown)
    }

    /// Its place in the catalog.
    pub(crate) fn id(&mut self, catalog: &mut Catalog, comm: &str) -> ProcessId {
        if let Some(id) = self.id {
            return id;
        }
        let mut facts = ProcessFacts {
            pid: self.pid,
            comm: comm.to_owned(),
            ..ProcessFacts::default()
        };
        if let Some(process) = self.reader.as_ref().map(reader::Process::target) {
            let known = Facts::of(process);
            facts.start_ticks = known.start_ticks;
            facts.container_id = known.container_id;
            facts.executable = known.executable;
            if let Some(comm) = known.comm {
                facts.comm = comm;
            }
        }
        let id = catalog.add_process(facts);
        self.id = Some(id);
        self.describe(catalog);
        id
    }

    /// Tells the catalog what the process says of itself.
    pub(crate) fn describe(&mut self, catalog: &mut Catalog) {
        let Some(id) = self.id else { return };
        let detected = || self.reader.as_ref()?.detected().ok();
        let resource = match &self.context {
            Some(context) => context.payload.resource.clone(),
            None => detected().map_or_else(Vec::new, |detected| detected.resource),
        };
        let facts = catalog.process_mut(id);
        // One that withdraws what it published is about to end, or has ended: its samples keep it.
        if facts.published && self.context.is_none() {
            return;
        }
        facts.resource = resource;
        facts.published = self.context.is_some();
    }

    /// Tells the catalog what its code is mapped from, if these addresses lie in code that was not
    /// there before.
    pub(crate) fn explain(
        &mut self,
        catalog: &mut Catalog,
        addresses: impl IntoIterator<Item = u64>,
        modules: &mut Modules,
    ) {
        let Some(id) = self.id else { return };
        let mut unknown = addresses.into_iter().filter(|address| {
            let at = self.code.partition_point(|(start, _)| start <= address);
            at.checked_sub(1)
                .is_none_or(|at| *address >= self.code[at].1)
        });
        let now = Instant::now();
        if unknown.next().is_none() || !self.mappings.is_due(now) {
            return;
        }
        let found = self.read_mappings(catalog, id, modules);
        self.mappings.plan(now, now.elapsed(), found);
    }

    /// Reads the mappings, and adds those with code that are new. Whether there were any.
    fn read_mappings(
        &mut self,
        catalog: &mut Catalog,
        id: ProcessId,
        modules: &mut Modules,
    ) -> bool {
        let since = monotonic();
        let Some(process) = self.reader.as_ref().map(reader::Process::target) else {
            return false;
        };
        let known: std::collections::HashSet<_> = self.code.iter().copied().collect();
        let mut code = Vec::new();
        let mut found = Vec::new();
        // A process that has ended has nothing to tell any more.
        let _ = process.executable_mappings(&mut |mapping| {
            code.push((mapping.start, mapping.end));
            if !known.contains(&(mapping.start, mapping.end)) {
                let module = modules.module(process, mapping);
                found.push((mapping.start, mapping.end, mapping.offset, module));
            }
            if code.len() < MOST_MAPPINGS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        let any = !found.is_empty();
        for (start, end, offset, module) in found {
            let mapping = Mapping {
                start,
                end,
                offset,
                module: catalog.module(module),
                since,
            };
            catalog.process_mut(id).mappings.push(mapping);
        }
        if !code.is_empty() {
            self.code = code;
        }
        any
    }
}

/// Looks whether and how the threads of a process publish contexts.
fn look(reader: &mut reader::Process) -> (Option<Arc<ProcessContext>>, Publishing) {
    let context = match reader.context() {
        Ok(ContextState::Published(context)) => Some(context),
        // What it has mapped need not be gone through twice.
        Ok(ContextState::Absent) if !reader.options().any_schema => {
            return (None, Publishing::Nothing);
        }
        _ => None,
    };
    let support = reader.thread_support();
    let publishing = match support {
        Ok(ThreadSupport::Readable(variables)) => Publishing::Threads(variables),
        Ok(ThreadSupport::Unreadable(Unreadable::NoProcessContext | Unreadable::NoSchema)) => {
            Publishing::Nothing
        }
        Ok(ThreadSupport::Unreadable(_)) => Publishing::Unreadable,
        Err(_) if has_ended(reader.target().pid()) => Publishing::Nothing,
        Err(_) => Publishing::Unreadable,
    };
    (context, publishing)
}

fn places_of(publishing: &Publishing) -> Vec<Place> {
    match publishing {
        Publishing::Threads(variables) => places(&variables.resolution.variables),
        _ => Vec::new(),
    }
}

/// Build-ids by device and inode: most processes share most files.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    build_ids:
        std::collections::HashMap<(remote::Device, u64), Vec<u8>, foldhash::fast::RandomState>,
}

impl Modules {
    fn module(&mut self, process: &remote::Process, mapping: &remote::Mapping<'_>) -> Module {
        let name = String::from_utf8_lossy(mapping.name);
        if mapping.inode == 0 {
            let path = if name.is_empty() { "//anon" } else { &*name };
            return Module {
                path: path.to_owned(),
                ..Module::default()
            };
        }
        let key = (mapping.device, mapping.inode);
        let build_id = self.build_ids.entry(key).or_insert_with(|| {
            let range = (mapping.start, mapping.end);
            let file = process.mapped_file(range, mapping.name, mapping.device, mapping.inode);
            file.and_then(|file| remote::module::build_id(&file))
                .unwrap_or_default()
        });
        Module {
            path: name.into_owned(),
            build_id: build_id.clone(),
            device: u64::from(mapping.device.major) << 32 | u64::from(mapping.device.minor),
            inode: mapping.inode,
        }
    }
}

/// What the program in the kernel is told of a process.
pub(crate) fn target(serial: u32, places: &[Place]) -> Target {
    let mut target = Target {
        serial,
        places: places.len().min(MAX_PLACES) as u32,
        ..Target::default()
    };
    for (to, from) in target.place.iter_mut().zip(places) {
        *to = *from;
    }
    target
}

/// The variables of a process as the program in the kernel wants them.
pub(crate) fn places(variables: &[tls::TlsVariable]) -> Vec<Place> {
    let place = |variable: &tls::TlsVariable| {
        let registration = variable.registration();
        let base = Place {
            slot: registration.map_or(0, |it| it.address),
            slot_words: registration.map_or([0; 2], |it| it.words),
            ..Default::default()
        };
        match variable.place() {
            tls::Place::Static(offset) => Place {
                storage: storage::STATIC,
                offset: offset as u64,
                ..base
            },
            tls::Place::Dynamic {
                library,
                module,
                offset,
                generation,
            } => Place {
                storage: match library {
                    tls::CLibrary::Glibc => storage::GLIBC,
                    tls::CLibrary::Musl => storage::MUSL,
                },
                offset,
                module,
                generation: generation.unwrap_or(0),
                ..base
            },
        }
    };
    variables.iter().take(MAX_PLACES).map(place).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use otelctx_fixtures::{Compiler, Target};

    use super::*;

    /// None of this changes how much memory it has.
    #[test]
    fn a_process_that_publishes_in_memory_it_had_before_is_seen_all_the_same() {
        let sources = ["publish_later.c", "variable.c"];
        let flags = ["-DLINKED", "-rdynamic"];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let of_all = Some(Duration::from_secs(60));
        for (how, scan_timeout, most_looks) in [
            ("map", None, 1),
            ("name", None, 1),
            ("update", None, 1),
            ("map", of_all, LOOK_ANYWAY),
            ("name", of_all, LOOK_ANYWAY),
            ("update", of_all, 1),
        ] {
            let mut target = Target::spawn(Command::new(&program).arg(how));
            let options = reader::Options::default();
            let modules = FileCache::default();
            let mut known = Known::open(target.pid(), options, modules, scan_timeout).unwrap();
            for _ in 0..5 {
                known.look();
                let publishing = &known.publishing;
                assert!(matches!(publishing, Publishing::Nothing), "{publishing:?}");
            }
            let sizes = |known: &Known| {
                let process = known.reader.as_ref().unwrap().target();
                process.sizes().unwrap().1
            };
            let before = sizes(&known);
            target.command("publish");
            if target.lines == ["refused"] {
                eprintln!("skipped: this kernel gives anonymous memory no names");
                continue;
            }
            assert_eq!(sizes(&known), before, "{how}");
            let looks = (1..=most_looks).find(|_| {
                known.look();
                matches!(known.publishing, Publishing::Threads(_))
            });
            assert!(looks.is_some(), "{how}: {:?}", known.publishing);
        }
    }

    fn workers() -> Option<Target> {
        let sources = ["threads.c", "variable.c", "publish.c"];
        let program = Compiler::gcc().program(&sources, &["-DLINKED", "-rdynamic"])?;
        Some(Target::spawn(&mut Command::new(program)))
    }

    fn open(target: &Target) -> Known {
        let (options, modules) = (reader::Options::default(), FileCache::default());
        Known::open(target.pid(), options, modules, None).unwrap()
    }

    #[test]
    fn what_a_process_has_published_stays_when_it_has_ended() {
        let Some(mut target) = workers() else { return };
        let mut known = open(&target);
        let mut catalog = Catalog::new();
        known.look();
        let id = known.id(&mut catalog, "");
        let before = catalog.process(id).clone();
        assert!(before.published);
        target.child().kill().unwrap();
        // It becomes a zombie: nobody waits for it. A look that meets it as it goes may still find its
        // context, and no threads.
        let begin = Instant::now();
        while known.context.is_some() {
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(1));
            known.look();
            known.describe(&mut catalog);
            assert_eq!(*catalog.process(id), before);
        }
        assert!(known.exists());
    }

    /// What is known of it after a look, its names under configuration 7.
    fn with_names(target: &Target) -> Known {
        let mut known = open(target);
        known.look();
        let Publishing::Threads(variables) = &known.publishing else {
            panic!("{:?}", known.publishing)
        };
        let keys = variables.keys.clone();
        known.set_keys(7, keys);
        known
    }

    /// Each of its samples would wait for the update's end otherwise.
    #[test]
    fn a_process_that_never_ends_an_update_is_not_waited_for_again_at_once() {
        let sources = ["publish_later.c", "variable.c"];
        let flags = ["-DLINKED", "-rdynamic"];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let mut target = Target::spawn(Command::new(program).arg("update"));
        target.command("publish");
        let mut known = with_names(&target);
        assert!(!known.refresh_keys(7));
        target.command("never end");
        // Perhaps the machine was busy just now.
        known.keys_rest = Instant::now();
        let begin = Instant::now();
        assert!(!known.refresh_keys(7));
        assert!(known.keys_rest >= begin + DEAR_NAMES * REST);
    }

    #[test]
    fn another_program_does_not_have_the_names_of_the_one_before() {
        let Some(target) = workers() else { return };
        let mut known = with_names(&target);
        assert!(known.keys(7).is_some());
        known.executed();
        assert!(known.keys(7).is_none());
    }
}
