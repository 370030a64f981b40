//! Selects the processes, samples and attribute of `record` and `top`.

use std::collections::{HashMap, HashSet};
use std::iter;

use otelctx_profile::report::{AttributeFilter as AttributeCondition, ThreadFilter, TimeKind};
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::{Catalog, Event, OffCpuState, ProcessFacts, Sample};
use otelctx_profile::{Format, Recording};
use otelctx_reader::format::TraceId;
use otelctx_reader::{Error as ReaderError, remote};
use otelctx_sampler::{Error as SamplerError, Options, Sampler, Targets};
use otelctx_track::Facts;

use crate::command::attribute_filter::AttributeFilter;
use crate::command::descendants;
use crate::command::help;
use crate::command::ids::process_of;
use crate::command::selection::{self, GivenOption};
use crate::error::Error;
use crate::hidden;
use crate::output::{attributes, terminal};

/// The attribute to group by unless another one is given.
pub(super) const ROUTE: &str = "http.route";
/// Value of `--by` for no attribute.
pub(super) const NONE: &str = "none";

/// Returns what `--by` groups by: what was asked for, which is nothing with [`NONE`], or else the route.
pub(super) fn levels(asked: &[String]) -> Vec<String> {
    match asked {
        [] => vec![ROUTE.to_owned()],
        [none] if none == NONE => Vec::new(),
        names => names.to_vec(),
    }
}

/// Returns those of these names that files of a format can be divided by, and says which cannot.
pub(super) fn divided_by(format: Format, by: &[String]) -> Vec<String> {
    let is_divided = matches!(
        format,
        Format::FlameGraph | Format::Page | Format::Folded | Format::Firefox
    );
    let (unusable, used): (Vec<String>, Vec<String>) =
        by.iter().cloned().partition(|it| format.has_level(it));
    if is_divided && !unusable.is_empty() {
        let (names, extension) = (unusable.join(" and "), format.extension());
        terminal::complain(
            &format!("a {extension} file is not divided by {names}, which it shows in any case"),
            None,
        );
    }
    used
}

/// The samples to keep; by default all.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = help::SAMPLES)]
pub(super) struct Filter {
    /// Keep only samples with this attribute of the context or the process's resource, such as
    /// service.name=shop; KEY!=VALUE for others, KEY=PREFIX* for values that start like this, KEY for
    /// any value; of several, all must hold
    #[arg(long = "filter", value_name = "KEY=VALUE", value_parser = selection::attribute)]
    pub(super) conditions: Vec<AttributeCondition>,
    /// Keep only samples of this trace: 32 hexadecimal digits; can be repeated
    #[arg(long = "trace", value_name = "ID", value_parser = selection::trace)]
    pub(super) traces: Vec<TraceId>,
    /// Keep only threads with this name or ID; a name may end in *
    #[arg(long = "thread", value_name = "NAME|TID", value_parser = selection::thread)]
    pub(super) threads: Vec<ThreadFilter>,
    /// Keep only samples whose stack has a function with this text in its name or its file's; can be
    /// repeated
    #[arg(long = "function", value_name = "TEXT", value_parser = selection::text)]
    pub(super) functions: Vec<String>,
    /// Kind of time that samples stand for: running (on a CPU), queued (ready, without a CPU) or
    /// waiting, both of which are sampled as with --wall; can be repeated [default: all that are sampled]
    #[arg(long = "kind", value_name = "KIND", value_parser = selection::kind)]
    pub(super) kinds: Vec<TimeKind>,
    /// Keep only frames of this language, such as python or kernel; can be repeated
    #[arg(long = "language", value_name = "LANGUAGE", value_parser = selection::language)]
    pub(super) languages: Vec<String>,
    #[command(flatten)]
    pub(super) attributes: AttributeFilter,
}

impl Filter {
    pub(super) fn is_empty(&self) -> bool {
        !self.has_conditions() && self.functions.is_empty()
    }

    /// Returns the selection as it was written.
    pub(super) fn described(&self) -> Vec<GivenOption> {
        let conditions = self.conditions.iter();
        let conditions = conditions.map(|it| GivenOption::new("filter", it));
        let traces = self.traces.iter().map(|it| GivenOption::new("trace", it));
        let threads = self.threads.iter();
        let threads = threads.map(|it| GivenOption::new("thread", it));
        let functions = self.functions.iter();
        let functions = functions.map(|it| GivenOption::new("function", it));
        let kinds = self.kinds.iter();
        let kinds = kinds.map(|it| GivenOption::new("kind", selection::kind_names(&[*it])));
        let languages = self.languages.iter();
        let languages = languages.map(|it| GivenOption::new("language", it));
        let all = conditions.chain(traces).chain(threads);
        all.chain(functions).chain(kinds).chain(languages).collect()
    }

    /// Returns true if there are conditions on samples that hold without their functions.
    fn has_conditions(&self) -> bool {
        let is_any = self.conditions.is_empty() && self.traces.is_empty();
        !(is_any && self.threads.is_empty() && self.kinds.is_empty())
    }

    /// Removes all other samples; the counters keep them. At the end of a recording, because a process may publish late.
    pub(super) fn keep(&self, recording: &mut Recording) {
        if !self.has_conditions() {
            return;
        }
        let catalog = &recording.catalog;
        // A thread has few contexts, and many samples of each.
        let mut known = HashMap::new();
        recording.samples.retain(|sample| {
            let kind = kind_of(sample) as usize;
            let key = (sample.thread, sample.found.attached().copied(), kind);
            *known
                .entry(key)
                .or_insert_with(|| self.keeps(catalog, sample))
        });
    }

    /// Returns whether a sample passes, by what its process has published so far.
    pub(super) fn keeps(&self, catalog: &Catalog, sample: &Sample) -> bool {
        let thread = catalog.thread_facts(sample.thread);
        let facts = catalog.process(thread.process);
        let context = sample.found.attached().map(|id| catalog.context_facts(*id));
        let is_thread =
            |wanted: &ThreadFilter| wanted.accepts(&thread.name, Some(thread.tid.into()));
        (self.kinds.is_empty() || self.kinds.contains(&kind_of(sample)))
            && self.is_of_trace(catalog, sample)
            && (self.threads.is_empty() || self.threads.iter().any(is_thread))
            && self.conditions.iter().all(|it| holds(it, context, facts))
    }

    fn is_of_trace(&self, catalog: &Catalog, sample: &Sample) -> bool {
        let context = sample.found.attached();
        let is_wanted = |id: &_| self.traces.contains(&catalog.context_facts(*id).trace_id);
        self.traces.is_empty() || context.is_some_and(is_wanted)
    }
}

/// Returns the kind of time that a sample stands for.
fn kind_of(sample: &Sample) -> TimeKind {
    match sample.event {
        Event::OffCpu(off) if off.state == OffCpuState::Queued => TimeKind::Queued,
        Event::OffCpu(_) => TimeKind::Waiting,
        _ => TimeKind::Running,
    }
}

/// Returns true if a condition holds for an attribute of the context or, without one of that name,
/// of the process's resource.
fn holds(
    condition: &AttributeCondition,
    context: Option<&DecodedContext>,
    facts: &ProcessFacts,
) -> bool {
    let name = &condition.name;
    let mut of_context = context.iter().flat_map(|context| &context.attributes);
    if let Some((_, value)) = of_context.find(|(key, _)| key == name) {
        return condition.condition.accepts(Some(value));
    }
    let found = facts.resource.iter().find(|(key, _)| key == name);
    let value = found.map(|(_, value)| attributes::text(value));
    condition.condition.accepts(value.as_deref())
}

/// The running processes to sample.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = help::PROCESSES)]
pub(super) struct Select {
    /// Sample the processes with this name: of their program's file, or as in /proc/PID/comm
    #[arg(long, value_name = "NAME")]
    pub(super) name: Vec<String>,
    /// Sample the processes of this container: its ID or the start of it, at least 12 digits
    #[arg(long, value_name = "ID", value_parser = container)]
    pub(super) container: Vec<String>,
    /// Sample the processes of this control group and of those in it: its path as in
    /// /proc/PID/cgroup, or its directory
    #[arg(long, value_name = "PATH", value_parser = control_group)]
    pub(super) cgroup: Vec<String>,
    /// Do not include the child processes that the selected ones have already; children that they
    /// start later are sampled
    #[arg(long, conflicts_with_all = ["all", "command"])]
    pub(super) no_children: bool,
}

/// Selected processes.
#[derive(Debug, Default)]
pub(super) struct Selected {
    pub(super) pids: Vec<i32>,
    /// See [`Options::older_children`].
    pub(super) older_children: Vec<i32>,
}

impl Select {
    pub(super) fn is_empty(&self) -> bool {
        self.name.is_empty() && self.container.is_empty() && self.cgroup.is_empty()
    }

    /// Returns the processes that are selected by `pids`, name, container or control group, and the
    /// children that they have. A container or a control group contains its children itself.
    pub(super) fn processes(&self, pids: &[i32]) -> Result<Selected, Error> {
        let mut selected = self.without_children(pids)?;
        let older_children = descendants::of(&selected);
        if !self.no_children && self.container.is_empty() && self.cgroup.is_empty() {
            descendants::add_to(&mut selected, &older_children);
        }
        Ok(Selected {
            pids: selected,
            older_children,
        })
    }

    fn without_children(&self, pids: &[i32]) -> Result<Vec<i32>, Error> {
        let mut selected = processes(pids)?;
        if self.is_empty() {
            return Ok(selected);
        }
        hidden::say_if_any();
        let all = [&self.name, &self.container, &self.cgroup];
        let all = all.into_iter().flatten();
        let mut missing: HashSet<&str> = all.map(String::as_str).collect();
        for pid in remote::process::processes().map_err(otelctx_reader::Error::from)? {
            // It may have ended since.
            let Ok(process) = remote::Process::open(pid) else {
                continue;
            };
            let status = process.status();
            let is_candidate = status.is_ok_and(|it| !it.kernel_thread && it.state != 'Z');
            if pid == std::process::id() as i32 || !is_candidate {
                continue;
            }
            // If it has ended, it is in none.
            let groups = process.control_groups().unwrap_or_default();
            for selector in self.matching(&Facts::of(&process), &groups) {
                missing.remove(selector);
                if !selected.contains(&pid) {
                    selected.push(pid);
                }
            }
        }
        let first_missing =
            |of: &[String]| of.iter().find(|it| missing.contains(it.as_str())).cloned();
        if let Some(name) = first_missing(&self.name) {
            let name = terminal::escape(&name);
            Err(Error::NoneSelected(format!("named {name}")))
        } else if let Some(id) = first_missing(&self.container) {
            Err(Error::NoneSelected(format!("in container {id}")))
        } else if let Some(path) = first_missing(&self.cgroup) {
            let path = terminal::escape(&path);
            Err(Error::NoneSelected(format!("in control group {path}")))
        } else {
            Ok(selected)
        }
    }

    /// Returns the names, containers and control groups that a process belongs to; `groups` is its
    /// `/proc/PID/cgroup`.
    fn matching(&self, facts: &Facts, groups: &str) -> Vec<&str> {
        let named = |name: &&String| names(facts).any(|it| it == name.as_str());
        let container = facts.container_id.as_deref().unwrap_or_default();
        let contained = |id: &&String| container.starts_with(id.as_str());
        let grouped = |path: &&String| groups.lines().any(|line| is_in(line, path));
        let names = self.name.iter().filter(named);
        let containers = self.container.iter().filter(contained);
        let groups = self.cgroup.iter().filter(grouped);
        let all = names.chain(containers).chain(groups);
        all.map(String::as_str).collect()
    }
}

/// Returns the names that `--name` selects a process by: its command name, and its program's file.
pub(super) fn names(facts: &Facts) -> impl Iterator<Item = &str> {
    let path = facts.executable.strip_suffix(" (deleted)");
    let program = path.unwrap_or(&facts.executable).rsplit('/').next();
    let program = program.filter(|name| !name.is_empty());
    facts.comm.as_deref().into_iter().chain(program)
}

/// Starts to sample the processes of `options`. A process that was not `given` by its ID may have
/// ended since: it is omitted if others are left.
pub(super) fn start(options: &mut Options, given: &[i32]) -> Result<Sampler, SamplerError> {
    loop {
        let error = match Sampler::start(options) {
            Ok(sampler) => return Ok(sampler),
            Err(error) => error,
        };
        let ended = match &error {
            SamplerError::Remote(remote::Error::NoSuchProcess { pid })
            | SamplerError::Reader(ReaderError::Remote(remote::Error::NoSuchProcess { pid })) => {
                *pid
            }
            _ => return Err(error),
        };
        match &mut options.targets {
            Targets::Processes(pids) if pids.len() > 1 && !given.contains(&ended) => {
                pids.retain(|pid| *pid != ended);
            }
            _ => return Err(error),
        }
    }
}

/// Parses the ID of a container, or the start of it.
fn container(text: &str) -> Result<String, String> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if (12..=64).contains(&text.len()) && text.bytes().all(is_digit) {
        Ok(text.to_owned())
    } else {
        Err("expected 12 to 64 hexadecimal digits".to_owned())
    }
}

/// Parses the path of a control group, with a slash at its start and none at its end, from its path
/// or its directory.
fn control_group(text: &str) -> Result<String, String> {
    let path = text.strip_prefix("/sys/fs/cgroup/").unwrap_or(text);
    match path.trim_matches('/') {
        "" => Err("expected a control group below the first one, such as system.slice".to_owned()),
        path => Ok(format!("/{path}")),
    }
}

/// Returns whether a line of `/proc/PID/cgroup` (`ID:CONTROLLERS:PATH`, cgroups(7)) means this group
/// or one in it. In version 1 of control groups, the directory of a group is below that of its
/// controllers, to which links with the name of each lead; beside it, version 2 has the directory
/// `unified` (systemd, docs/CGROUP_DELEGATION.md).
fn is_in(line: &str, group: &str) -> bool {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return false;
    };
    let below = |path: &str, group: &str| {
        let rest = path.strip_prefix(group);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let directory = match controllers {
        "" => "unified",
        controllers => controllers.trim_start_matches("name="),
    };
    let mut directories = iter::once(directory).chain(directory.split(','));
    let of_controllers = |directory: &str| {
        let group = group[1..].strip_prefix(directory);
        group.is_some_and(|group| group.starts_with('/') && below(path, group))
    };
    below(path, group) || directories.any(of_controllers)
}

/// Returns the processes with these IDs, or with threads of these IDs.
fn processes(ids: &[i32]) -> Result<Vec<i32>, Error> {
    let mut pids = Vec::new();
    for id in ids {
        let pid = process_of(*id)?;
        if pid == std::process::id() as i32 {
            return Err(Error::Own(pid));
        }
        if pid != *id {
            let message =
                format!("{id} is a thread of process {pid}; the whole process is sampled");
            terminal::complain(&message, None);
        }
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_contains_those_in_it() {
        let groups = "5:cpu,cpuacct:/shop\n3:name=systemd:/system.slice/shop.service\n0::/a/b:c\n";
        let is_in = |text: &str| {
            let group = control_group(text).unwrap();
            groups.lines().any(|line| is_in(line, &group))
        };
        for group in [
            "/shop",
            "system.slice/",
            "/sys/fs/cgroup/system.slice/shop.service/",
            "/sys/fs/cgroup/systemd/system.slice",
            "/sys/fs/cgroup/cpu,cpuacct/shop",
            "/sys/fs/cgroup/cpu/shop",
            "/sys/fs/cgroup/cpuacct/shop",
            "/sys/fs/cgroup/unified/a",
            "a/b:c",
        ] {
            assert!(is_in(group), "{group}");
        }
        for group in [
            "sho",
            "system",
            "/slice",
            "b:c",
            "memory/shop",
            "cp/shop",
            "/sys/fs/cgroup/cpu/a",
            "/sys/fs/cgroup/unified/shop",
            "/sys/fs/cgroup/cpuacct",
        ] {
            assert!(!is_in(group), "{group}");
        }
        assert_eq!(control_group("/sys/fs/cgroups").unwrap(), "/sys/fs/cgroups");
        for wrong in ["", "/", "/sys/fs/cgroup/"] {
            assert!(control_group(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processes_are_selected_by_program_name_and_container() {
        let id = "0123456789abcdef".repeat(4);
        let mut facts = Facts::default();
        facts.comm = Some("worker".into());
        facts.executable = "/srv/shop (deleted)".into();
        facts.container_id = Some(id.clone());
        let matching = |name: &str, container: &str| {
            let select = Select {
                name: vec![name.into()],
                container: vec![container.into()],
                ..Select::default()
            };
            select.matching(&facts, "").len()
        };
        assert_eq!(matching("shop", &id[..12]), 2);
        assert_eq!(matching("worker", &id[1..13]), 1);
        assert_eq!(matching("srv", &id), 1);
        assert_eq!(matching("shop (deleted)", "f"), 0);
        assert_eq!(container(&id).as_ref(), Ok(&id));
        assert_eq!(container(&id[..12]).unwrap(), id[..12]);
        for wrong in ["", &id[..11], "0123456789AB", &format!("{id}0")] {
            assert!(container(wrong).is_err(), "{wrong}");
        }
    }
}
