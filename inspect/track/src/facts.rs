//! Facts about a process other than its process context.

use otelctx_reader::remote;

/// The variable by which a process asks not to be recorded, with the value `off`.
const OPT_OUT: &str = "OTELCTX_PROFILE";
/// Maximum number of bytes that are read of an environment for that.
const ENVIRONMENT_LIMIT: usize = 1 << 20;

/// Length of a container ID, in hexadecimal digits.
const CONTAINER_ID: usize = 64;

/// Facts about a process. Everything from its memory and its names is chosen by the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// The time of its start, in clock ticks after boot; 0 if it has ended.
    pub start_ticks: u64,
    /// Its command name in the kernel; `None` if it has ended.
    pub comm: Option<String>,
    /// The path of its program, as the process sees it; empty if it cannot be read.
    pub executable: String,
    /// The ID of its container, from its control group.
    pub container_id: Option<String>,
    /// The UID of its Kubernetes pod, from its control group.
    pub pod_uid: Option<String>,
    /// Whether it was started with `OTELCTX_PROFILE=off`: it asks agents not to record it. `None` if its environment cannot be read,
    /// as while it executes a program or ends, or was overwritten.
    pub opted_out: Option<bool>,
}

impl Facts {
    /// Reads all facts that are still available.
    #[must_use]
    pub fn of(process: &remote::Process) -> Self {
        let lossy = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        let executable = process.executable();
        let start = process.stat().ok().and_then(|stat| stat.start());
        let groups = process.control_groups().unwrap_or_default();
        Self {
            start_ticks: start.unwrap_or_default(),
            comm: process.comm().ok().map(|comm| lossy(&comm)),
            executable: executable.map_or(String::new(), |path| lossy(path.as_os_str())),
            container_id: container_id(&groups),
            pod_uid: pod_uid(&groups),
            opted_out: opted_out(process),
        }
    }
}

/// Docker, containerd, CRI-O and Podman name a container's group by its ID: `docker-ID.scope`,
/// `cri-containerd-ID.scope`, `/ID`. The process that monitors a container is not in it, although
/// its group has that ID, too: `crio-conmon-ID.scope`.
fn container_id(groups: &str) -> Option<String> {
    let mut names = groups.rsplit(['/', ':', '\n']);
    names.find_map(|name| {
        let mut words = name.split(|character: char| !character.is_ascii_hexdigit());
        let id = words.rfind(|word| word.len() == CONTAINER_ID)?;
        (!name.contains("conmon-")).then(|| id.to_owned())
    })
}

/// The kubelet names a pod's group by its UID: `pod3d1f….`, or for systemd `kubepods-burstable-pod3d1f….slice`, with
/// underscores. UIDs of static pods are 32 digits without dashes.
fn pod_uid(groups: &str) -> Option<String> {
    let mut names = groups.rsplit(['/', ':', '\n']);
    names.find_map(|name| {
        let name = name.strip_suffix(".slice").unwrap_or(name);
        let (before, uid) = name.rsplit_once("pod")?;
        let is_group = before.is_empty() || before.starts_with("kubepods") && before.ends_with('-');
        let uid = uid.replace('_', "-");
        let is_uid = match uid.len() {
            32 => uid.bytes().all(|it| it.is_ascii_hexdigit()),
            36 => uid.bytes().enumerate().all(|(index, byte)| match index {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            }),
            _ => false,
        };
        (is_group && is_uid).then_some(uid)
    })
}

/// Returns whether a process was started with the variable that asks agents not to record it, if it has an environment.
fn opted_out(process: &remote::Process) -> Option<bool> {
    let variables = process.environment(ENVIRONMENT_LIMIT).ok()?;
    let found = variables.iter().find(|(name, _)| name == OPT_OUT);
    let asks = found.is_some_and(|(_, value)| value.eq_ignore_ascii_case("off"));
    (!variables.is_empty() || is_empty(process)).then_some(asks)
}

/// Returns whether a process was started without any variable. While it executes a program or ends, there are no bounds (proc(5),
/// `env_start` and `env_end`).
fn is_empty(process: &remote::Process) -> bool {
    let stat = process.stat().ok();
    let field = |number| stat.as_ref()?.field(number)?.parse::<u64>().ok();
    field(50).is_some_and(|start| start > 0 && field(51) == Some(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_known_by_its_group() {
        let uid = "3d1f0b9e-5c7a-4f1e-9d2b-0123456789ab";
        let id = "c".repeat(CONTAINER_ID);
        let slice = uid.replace('-', "_");
        for group in [
            format!("0::/kubepods/besteffort/pod{uid}/{id}\n"),
            format!("12:pids:/kubepods/pod{uid}\n1:name=systemd:/kubepods/pod{uid}/{id}\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{id}.scope\n"
            ),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-{id}.scope/container\n"),
            format!("0::/../../kubepods-besteffort-pod{slice}.slice/{id}\n"),
        ] {
            assert_eq!(pod_uid(&group).as_deref(), Some(uid), "{group}");
        }
        let of_static = "0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/x\n";
        assert_eq!(
            pod_uid(of_static).as_deref(),
            Some("0123456789abcdef0123456789abcdef")
        );
        for group in [
            "0::/user.slice\n".to_owned(),
            format!("0::/machine.slice/libpod-{id}.scope\n"),
            format!("0::/tripod{uid}\n"),
            format!("0::/kubepods/pod{uid}0\n"),
            format!("0::/kubepods/pod{}\n", uid.replace('3', "x")),
            "0::/kubepods/pod\n".to_owned(),
        ] {
            assert_eq!(pod_uid(&group), None, "{group}");
        }
    }

    #[test]
    fn a_process_opts_out_by_its_environment() {
        for (value, expected) in [("off", true), ("OFF", true), ("on", false), ("", false)] {
            let mut child = std::process::Command::new("sleep")
                .arg("1000")
                .env("OTELCTX_PROFILE", value)
                .spawn()
                .unwrap();
            let process = remote::Process::open(child.id() as i32).unwrap();
            // While the program is being executed, it has no environment yet.
            while process.environment(1 << 20).unwrap().is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(Facts::of(&process).opted_out, Some(expected), "{value}");
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(Facts::of(&process).opted_out, None);
        }
    }

    /// It has not asked for anything, whatever its parent has.
    #[test]
    fn a_process_may_have_an_empty_environment() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .env_clear()
            .spawn()
            .unwrap();
        let process = remote::Process::open(child.id() as i32).unwrap();
        // Until the program is executed, there is none.
        while process.comm().unwrap() != "sleep" || Facts::of(&process).opted_out.is_none() {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::yield_now();
        }
        assert_eq!(Facts::of(&process).opted_out, Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Facts::of(&process).opted_out, None);
    }

    #[test]
    fn a_container_is_known_by_its_group() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let other = "f".repeat(CONTAINER_ID);
        for group in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("12:pids:/kubepods/besteffort/pod3d1f/{id}\n1:name=systemd:/init.scope\n"),
            format!("0::/../cri-containerd-{id}.scope\n"),
            format!("0::/system.slice/kubepods.slice:cri-containerd:{id}\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
            format!("0::/docker/{id}/machine.slice/libpod-conmon-{other}.scope\n"),
            format!("0::/docker/{other}/machine.slice/libpod-{id}.scope/container\n"),
        ] {
            assert_eq!(container_id(&group).as_deref(), Some(id), "{group}");
        }
        for group in [
            "0::/user.slice/user-0.slice\n",
            &format!("0::/kubepods.slice/crio-conmon-{id}.scope\n"),
            &format!("0::/system.slice/docker-{id}0.scope\n"),
        ] {
            assert_eq!(container_id(group), None, "{group}");
        }
    }
}
