//! Other agents on this machine, which take the same samples.

use std::fs;
use std::path::Path;

use otelctx_reader::remote::Process;
use otelctx_reader::remote::process::processes;

/// Maximum number of bytes that are read of a command line.
const MAX_COMMAND_LINE: usize = 4096;
/// Arguments of agents that only ask something.
const QUESTIONS: [&str; 4] = ["--health", "--check-config", "--help", "-h"];

/// Finds the processes that run this program as an agent, apart from this one.
pub(super) fn find() -> Vec<i32> {
    let own = std::process::id() as i32;
    let Ok(program) = fs::read_link("/proc/self/exe") else {
        return Vec::new();
    };
    let others = processes().unwrap_or_default().into_iter();
    let others = others.filter(|pid| *pid != own && is_agent(*pid, &program));
    let children_of = |pid| Process::open(pid).map_or_else(|_| Vec::new(), |it| it.children());
    without_children(others.collect(), children_of)
}

/// Leaves out the child processes of agents, which have the same command line: they decode files.
fn without_children(mut agents: Vec<i32>, children_of: impl Fn(i32) -> Vec<i32>) -> Vec<i32> {
    let children: Vec<i32> = agents.iter().flat_map(|pid| children_of(*pid)).collect();
    agents.retain(|pid| !children.contains(pid));
    agents
}

/// Returns whether a process runs a program of the same name as an agent.
fn is_agent(pid: i32, program: &Path) -> bool {
    let executable = fs::read_link(format!("/proc/{pid}/exe"));
    if !executable.is_ok_and(|it| it.file_name() == program.file_name()) {
        return false;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    is_command_line(&line[..line.len().min(MAX_COMMAND_LINE)])
}

/// Returns whether a command line is that of an agent (proc(5), `/proc/PID/cmdline`).
fn is_command_line(line: &[u8]) -> bool {
    let mut arguments = line.split(|byte| *byte == 0).skip(1);
    let asks = |it: &[u8]| QUESTIONS.iter().any(|question| question.as_bytes() == it);
    arguments.next() == Some(b"agent") && !arguments.any(asks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_processes_of_an_agent_are_no_agents() {
        let children_of = |pid| match pid {
            10 => vec![11, 12, 99],
            20 => vec![21],
            _ => Vec::new(),
        };
        let of = |agents: &[i32]| without_children(agents.to_vec(), children_of);
        assert_eq!(of(&[10, 11, 12, 20]), [10, 20]);
        assert_eq!(of(&[20, 21, 99]), [20, 99]);
    }

    #[test]
    fn an_agent_is_known_by_its_command_line() {
        for (line, expected) in [
            (&b"otelctx\0agent\0"[..], true),
            (b"/usr/bin/otelctx\0agent\0--otlp\0http://c:4317\0", true),
            (b"otelctx\0agent\0--health\0--listen\x009464\0", false),
            (b"otelctx\0agent\0--config\0x\0--check-config\0", false),
            (b"otelctx\0record\0agent\0", false),
            (b"otelctx\0", false),
            (b"", false),
        ] {
            let text = String::from_utf8_lossy(line);
            assert_eq!(is_command_line(line), expected, "{text}");
        }
    }
}
