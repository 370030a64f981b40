//! The stack as it really is: what calls have pushed and returns have not yet taken.
//!
//! Nothing here comes from unwind tables: each call that is executed adds the place of its return
//! address, and each instruction that moves the stack pointer above that place removes it.

use nix::libc::{self, user_regs_struct};
use otelctx_remote::Memory;

use crate::tracee::{Step, Tracee};

/// One caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// A call put the return address there.
    Call { place: u64, address: u64 },
    /// A signal came before the instruction at that address, on that stack.
    Interrupted {
        place: u64,
        address: u64,
        stack: usize,
    },
}

/// The stack of one thread.
pub(crate) struct Truth {
    /// Address ranges of other stacks than the thread's own, which is number 0.
    ranges: Vec<(u64, u64)>,
    stacks: Vec<Vec<Caller>>,
    current: usize,
    /// The innermost return address is in a register, as in vfork.
    in_register: bool,
    /// Another stack was switched to, and the code that resumes there has not yet returned to it.
    pub(crate) is_switching: bool,
}

impl Truth {
    pub(crate) fn new(ranges: Vec<(u64, u64)>) -> Self {
        Truth {
            stacks: vec![Vec::new(); ranges.len() + 1],
            ranges,
            current: 0,
            in_register: false,
            is_switching: false,
        }
    }

    /// Sets the callers before the first instruction of a function, innermost first.
    pub(crate) fn start_with(&mut self, place: u64, callers: &[u64]) {
        let known = callers.iter().enumerate().rev();
        let callers = known.map(|(depth, address)| Caller::Call {
            // Where the others have theirs does not matter: they are still there at the end.
            place: if depth == 0 { place } else { u64::MAX },
            address: *address,
        });
        self.stacks[0].extend(callers);
    }

    /// Executes one instruction.
    pub(crate) fn step(&mut self, tracee: &mut Tracee) -> Step {
        let before = tracee.registers;
        let code = tracee.instruction();
        let kind = Kind::of(&code, &before);
        let step = tracee.step();
        let after = tracee.registers;
        match step {
            Step::End => return step,
            Step::Handler => self.enter_handler(tracee, before),
            Step::Instruction => self.instruction(tracee, kind, before, after),
        }
        step
    }

    /// Callers from the innermost on: the address, and whether it is a return address.
    pub(crate) fn callers(&self) -> impl Iterator<Item = (u64, bool)> {
        let mut stack = self.current;
        let mut left = self.stacks[stack].len();
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            Some(match self.stacks[stack][left] {
                Caller::Call { address, .. } => (address, true),
                Caller::Interrupted {
                    address,
                    stack: interrupted,
                    ..
                } => {
                    if interrupted != stack {
                        stack = interrupted;
                        left = self.stacks[stack].len();
                    }
                    (address, false)
                }
            })
        })
    }

    fn stack_of(&self, pointer: u64) -> usize {
        let inside = |(start, end): &(u64, u64)| (*start..=*end).contains(&pointer);
        self.ranges.iter().position(inside).map_or(0, |it| it + 1)
    }

    fn enter_handler(&mut self, tracee: &Tracee, before: user_regs_struct) {
        let after = tracee.registers;
        let stack = self.stack_of(after.rsp);
        if stack != self.current {
            // What an earlier handler, or a program that was here before, has left.
            self.stacks[stack].clear();
        }
        let restorer = tracee
            .memory
            .read_u64(after.rsp)
            .expect("the handler's frame");
        let interrupted = Caller::Interrupted {
            place: after.rsp + 8,
            address: before.rip,
            stack: self.current,
        };
        let call = Caller::Call {
            place: after.rsp,
            address: restorer,
        };
        self.current = stack;
        self.stacks[stack].extend([interrupted, call]);
    }

    fn instruction(
        &mut self,
        tracee: &Tracee,
        kind: Kind,
        before: user_regs_struct,
        after: user_regs_struct,
    ) {
        if kind == Kind::SignalReturn {
            let top = self.stacks[self.current].pop();
            let Some(Caller::Interrupted { address, stack, .. }) = top else {
                panic!(
                    "rt_sigreturn at {:#x} with {top:x?} on the stack",
                    before.rip
                );
            };
            assert_eq!(
                after.rip, address,
                "rt_sigreturn returns to what was interrupted"
            );
            self.current = stack;
            return;
        }
        let stack = self.stack_of(after.rsp);
        if stack != self.current {
            self.switch(stack, after);
            return;
        }
        if self.is_switching {
            // swapcontext ends with a return to where the other stack was left.
            if kind != Kind::Return {
                return;
            }
            self.is_switching = false;
            self.start_of_coroutine(tracee, after);
        }
        if kind == Kind::Call && after.rsp == before.rsp - 8 {
            let address = tracee
                .memory
                .read_u64(after.rsp)
                .expect("what the call pushed");
            let place = after.rsp;
            self.stacks[self.current].push(Caller::Call { place, address });
            return;
        }
        if self.in_register {
            let callers = &mut self.stacks[self.current];
            let Some(Caller::Call { place, address }) = callers.last().copied() else {
                panic!("no caller in a register");
            };
            if after.rsp <= place {
                self.in_register = false;
            } else if after.rip == address {
                callers.pop();
                self.in_register = false;
            }
            return;
        }
        if kind == Kind::Pop
            && matches!(self.stacks[self.current].last(), Some(Caller::Call { place, .. }) if *place == before.rsp)
        {
            self.in_register = true;
            return;
        }
        let place = |caller: &Caller| match *caller {
            Caller::Call { place, .. } | Caller::Interrupted { place, .. } => place,
        };
        let callers = &mut self.stacks[self.current];
        while callers.last().is_some_and(|last| place(last) < after.rsp) {
            // A handler's frame ends with rt_sigreturn, or with a jump out of it.
            if let Some(Caller::Interrupted { place, .. }) = callers.last()
                && after.rsp - place < 4096
                && kind == Kind::Return
            {
                break;
            }
            callers.pop();
        }
    }

    /// The stack pointer has left one stack for another. That is a jump out of a handler where the handler
    /// has interrupted code on the other one.
    fn switch(&mut self, stack: usize, after: user_regs_struct) {
        self.current = stack;
        self.is_switching = true;
        let callers = &mut self.stacks[stack];
        let place = |caller: &Caller| match *caller {
            Caller::Call { place, .. } | Caller::Interrupted { place, .. } => place,
        };
        while callers.last().is_some_and(|last| place(last) < after.rsp) {
            callers.pop();
        }
    }

    /// A coroutine's first function was "called" by what makecontext put on its stack, be it over what
    /// an earlier coroutine has left there.
    fn start_of_coroutine(&mut self, tracee: &Tracee, after: user_regs_struct) {
        if self.current == 0 {
            return;
        }
        let place = after.rsp;
        let address = tracee
            .memory
            .read_u64(place)
            .expect("what makecontext wrote");
        let start = Caller::Call { place, address };
        let callers = &mut self.stacks[self.current];
        let is_start = match callers.last() {
            None => true,
            Some(Caller::Call { place: known, .. }) => *known == place,
            Some(Caller::Interrupted { .. }) => false,
        };
        if is_start && callers.last() != Some(&start) {
            *callers = vec![start];
        }
    }
}

/// The effect of an instruction on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Call,
    Return,
    /// Of a register.
    Pop,
    SignalReturn,
    Other,
}

impl Kind {
    fn of(code: &[u8; 16], registers: &user_regs_struct) -> Self {
        if code.starts_with(&[0x0f, 0x05]) && registers.rax as i64 == libc::SYS_rt_sigreturn {
            return Kind::SignalReturn;
        }
        // Prefixes: operand and address size, repeat, notrack, and REX.
        let is_prefix =
            |byte: &u8| matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x2e | 0x3e | 0x40..=0x4f);
        let skipped = code.iter().take_while(|byte| is_prefix(byte)).count();
        match &code[skipped..] {
            [0xe8, ..] => Kind::Call,
            // The operation is in bits 3 to 5: 2, call.
            [0xff, operand, ..] if operand >> 3 & 7 == 2 => Kind::Call,
            [0xc2 | 0xc3, ..] => Kind::Return,
            [0x58..=0x5f, ..] => Kind::Pop,
            _ => Kind::Other,
        }
    }
}
