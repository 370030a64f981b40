//! A program that is executed one instruction at a time.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use otelctx_remote::{Memory, Process, ProcessMemory};

const PAGE: u64 = 4096;

pub(crate) struct Tracee {
    child: Child,
    pid: Pid,
    pub(crate) process: Process,
    pub(crate) memory: ProcessMemory,
    pub(crate) registers: user_regs_struct,
    /// Pages of code that were read.
    code: HashMap<u64, Option<Box<[u8; PAGE as usize]>>>,
    /// The signal to be delivered with the next step.
    signal: Option<Signal>,
    /// Mappings may have changed since the code was read last.
    pub(crate) changed: bool,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// An instruction.
    Instruction,
    /// A signal handler was entered instead.
    Handler,
    /// The program has ended.
    End,
}

impl Tracee {
    /// Starts a program and stops it before its first instruction.
    pub(crate) fn start(command: &mut Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: ptrace is a system call; nothing is allocated.
        unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
        let child = command.spawn().expect("the program starts");
        let pid = Pid::from_raw(child.id() as i32);
        let status = waitpid(pid, None).expect("it stops at its exec");
        assert_eq!(status, WaitStatus::Stopped(pid, Signal::SIGTRAP));
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL).expect("it is traced");
        let process = Process::open(pid.as_raw()).expect("it lives");
        let memory = process.memory().expect("it is ours");
        Tracee {
            child,
            pid,
            process,
            memory,
            registers: ptrace::getregs(pid).expect("it has stopped"),
            code: HashMap::new(),
            signal: None,
            changed: true,
        }
    }

    /// Runs until the function at `address` is called.
    pub(crate) fn run_to(&mut self, address: u64) {
        /// `int3`
        const BREAKPOINT: i64 = 0xcc;
        let place = address as *mut std::ffi::c_void;
        let code = ptrace::read(self.pid, place).expect("it has code there");
        let write = |code| ptrace::write(self.pid, place, code).expect("code can be written");
        write(code & !0xff | BREAKPOINT);
        ptrace::cont(self.pid, None).expect("it has stopped");
        let status = waitpid(self.pid, None).expect("it runs");
        assert_eq!(status, WaitStatus::Stopped(self.pid, Signal::SIGTRAP));
        write(code);
        self.registers = ptrace::getregs(self.pid).expect("it has stopped");
        self.registers.rip = address;
        ptrace::setregs(self.pid, self.registers).expect("it has stopped");
        self.changed = true;
        self.code.clear();
    }

    /// Sends the signal with the next step.
    pub(crate) fn send(&mut self, signal: Signal) {
        self.signal = Some(signal);
    }

    /// The bytes of the next instruction, and what follows.
    pub(crate) fn instruction(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let start = self.registers.rip;
        for (index, byte) in bytes.iter_mut().enumerate() {
            let address = start + index as u64;
            let page = address / PAGE * PAGE;
            let memory = &self.memory;
            let code = self.code.entry(page).or_insert_with(|| {
                let mut bytes = Box::new([0; PAGE as usize]);
                memory.read(page, &mut *bytes).is_ok().then_some(bytes)
            });
            *byte = code
                .as_ref()
                .map_or(0, |code| code[(address - page) as usize]);
        }
        bytes
    }

    /// Executes one instruction.
    pub(crate) fn step(&mut self) -> Step {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        let code = self.instruction();
        if code.starts_with(&SYSCALL) {
            let changing = [
                libc::SYS_mmap,
                libc::SYS_mprotect,
                libc::SYS_munmap,
                libc::SYS_mremap,
                libc::SYS_execve,
            ];
            if changing.contains(&(self.registers.rax as i64)) {
                self.changed = true;
                self.code.clear();
            }
        }
        let signal = self.signal.take();
        if ptrace::step(self.pid, signal).is_err() {
            return Step::End;
        }
        match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => {
                self.registers = ptrace::getregs(self.pid).expect("it has stopped");
                // A handler starts with the signal's number and two addresses in its frame: the third
                // argument, the context, is behind the return address.
                let is_handler = signal.is_some_and(|signal| {
                    let now = &self.registers;
                    now.rdi == signal as u64 && now.rdx == now.rsp + 8
                });
                match is_handler {
                    true => Step::Handler,
                    false => Step::Instruction,
                }
            }
            Ok(WaitStatus::Stopped(_, signal)) => {
                // The instruction was executed, or is after the handler.
                self.registers = ptrace::getregs(self.pid).expect("it has stopped");
                self.signal = Some(signal);
                Step::Instruction
            }
            _ => Step::End,
        }
    }

    /// Returns whether the program has installed a handler for the signal.
    pub(crate) fn catches(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        let status = status.expect("it lives");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("SigCgt").trim(), 16).expect("a mask");
        caught >> (signal as u32 - 1) & 1 == 1
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
