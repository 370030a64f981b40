//! Facts about a process other than its process context.

use otelctx_reader::remote;

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
}

impl Facts {
    /// Reads all facts that are still available.
    #[must_use]
    pub fn of(process: &remote::Process) -> Self {
        let lossy = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        let executable = process.executable();
        let start = process.stat().ok().and_then(|stat| stat.start());
        let groups = process.control_groups();
        Self {
            start_ticks: start.unwrap_or_default(),
            comm: process.comm().ok().map(|comm| lossy(&comm)),
            executable: executable.map_or(String::new(), |path| lossy(path.as_os_str())),
            container_id: groups.ok().as_deref().and_then(container_id),
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

#[cfg(test)]
mod tests {
    use super::*;

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
