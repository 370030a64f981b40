//! The paths through a function, whatever the architecture.
//!
//! Each path from the function's first instruction is followed. For each instruction, the known values of the stack
//! pointer, the frame pointer and other registers are kept, relative to the canonical frame address (CFA). Where paths
//! meet, only values on which all of them agree are known.

mod callees;
mod found;
mod queue;

use std::collections::BTreeSet;

use self::found::{Block, Found};
use self::queue::Paths;
use crate::instruction_set::{Flow, Instruction, InstructionSet, State};
use crate::instructions::{CodeRules, CodeWork, FunctionCode};
use crate::rule::Rule;

/// Paths into one instruction that are followed at most: each can only make less known.
const MAX_VISITS: u32 = 64;
/// Maximum number of blocks behind the last one that paths reach that are tried as a jump's targets.
const MAX_TRIED_BLOCKS: usize = 64;

/// Makes the rules of a function. See [`CodeReader::function`](crate::instructions::CodeReader::function).
pub(crate) fn function<I: InstructionSet>(
    code: &FunctionCode<'_>,
    work: &mut CodeWork,
) -> Option<CodeRules> {
    let mut first = Function::<I>::new(code, &mut *work);
    let mut is_followed = first.all().is_some();
    let returning = first.returning();
    if !first.is_function() && !returning.is_empty() {
        first = Function::<I>::new(code, &mut *work);
        first.returning.clone_from(&returning);
        is_followed = first.all().is_some();
    }
    let confirmed = first.found.confirmed();
    if !first.found.evidence.disagrees && first.found.doubts.is_subset(&confirmed) {
        let is_function = is_followed && first.is_function();
        return is_function.then(|| first.rules()).flatten();
    }
    // Most likely, a call that never returns is followed by what only jumps reach, or by another function.
    let targets = first.found.targets;
    let mut second = Function::<I>::new(code, work);
    second.known = Some(Known { targets, confirmed });
    second.returning = returning;
    second.all()?;
    let is_function = second.is_function() && !second.found.evidence.conflicts;
    is_function.then(|| second.rules()).flatten()
}

/// What the first run has found.
#[derive(Debug)]
struct Known {
    /// The targets of jumps. If a call is right before one, it may never return.
    targets: BTreeSet<u64>,
    /// Addresses behind calls and padding that belong to the function: such calls do return.
    confirmed: BTreeSet<u64>,
}

struct Function<'a, 'w, I: InstructionSet> {
    code: &'a FunctionCode<'a>,
    found: Found<I::State>,
    /// What an earlier run has found.
    known: Option<Known>,
    /// Functions that an earlier run has shown to return.
    returning: BTreeSet<u64>,
    /// Paths behind calls that may never return, which are followed last.
    doubtful: Vec<(u64, I::State)>,
    /// The address of a block that may be another function's, and whether a path from there leads back, jumps on as the one
    /// that may lead there, or returns with the stack as it was at the start.
    tried: u64,
    belongs: bool,
    work: &'w mut CodeWork,
    scratch: <I::State as State>::Scratch,
}

impl<'a, 'w, I: InstructionSet> Function<'a, 'w, I> {
    fn new(code: &'a FunctionCode<'a>, work: &'w mut CodeWork) -> Self {
        Function {
            code,
            found: Found::default(),
            known: None,
            returning: BTreeSet::new(),
            doubtful: Vec::new(),
            tried: 0,
            belongs: false,
            work,
            scratch: Default::default(),
        }
    }

    /// Follows all paths. `None` if the code is no function's.
    fn all(&mut self) -> Option<()> {
        self.follow(self.code.start, I::State::at_start())?;
        loop {
            self.follow_tables()?;
            if self.doubtful.is_empty() {
                break;
            }
            for (start, state) in std::mem::take(&mut self.doubtful) {
                self.follow_doubtful(start, state)?;
            }
        }
        Some(())
    }

    /// The functions that return to code that nothing else leads to. Parts that were moved out of a function have code behind
    /// calls that never return to which only exceptions lead; but others call no such part.
    fn returning(&self) -> BTreeSet<u64> {
        match self.code.is_named() && self.found.indirect_ends.is_empty() {
            true => self.found.callees.returning(&self.found.targets),
            false => BTreeSet::new(),
        }
    }

    /// Returns whether the code is known to be a function's.
    fn is_function(&self) -> bool {
        let evidence = &self.found.evidence;
        self.code.is_function || evidence.returns || evidence.saves
    }

    /// Follows what only jumps through a table reach: their targets have the state of those jumps.
    fn follow_tables(&mut self) -> Option<()> {
        let mut from = self.code.start;
        let mut tried = 0;
        while !self.found.indirect_ends.is_empty() {
            let Some(unreached) = self.first_unreached(from) else {
                break;
            };
            from = unreached;
            let next = self.found.blocks.range(unreached..).next();
            let next = next.map(|(start, _)| *start);
            let before = self.found.indirect_ends.range(..=unreached).next_back();
            let is_without_frame = before.is_some_and(|(_, is_without_frame)| *is_without_frame);
            if is_without_frame {
                // What follows such a jump is most likely its target.
                tried += 1;
                if tried > MAX_TRIED_BLOCKS {
                    break;
                }
                if self.try_block(unreached, I::State::at_start())? {
                    continue;
                }
            }
            let indirect = self.found.indirect.clone();
            let belongs = match indirect {
                // Behind a call that never returns, there may be another function, also before code that a jump reaches.
                Some(state) if next.is_some() && !self.found.ends.contains(&unreached) => {
                    self.follow(unreached, state)?;
                    true
                }
                Some(state) => {
                    tried += 1;
                    if tried > MAX_TRIED_BLOCKS {
                        break;
                    }
                    self.try_block(unreached, state)?
                }
                None => false,
            };
            match (belongs, next) {
                (true, _) => {}
                (false, Some(next)) => from = next,
                (false, None) => break,
            }
        }
        Some(())
    }

    /// Follows the path behind a call that may never return, if no other path leads there with another stack. `None` if
    /// the code cannot be a function's.
    fn follow_doubtful(&mut self, start: u64, state: I::State) -> Option<()> {
        let known = self.found.blocks.get(&start);
        match known.is_none_or(|known| known.state.stack() == state.stack()) {
            true => self.follow(start, state),
            false => Some(()),
        }
    }

    /// Follows the paths from behind the last block, which may be another function's. Returns whether it belongs to
    /// this one; if not, nothing that they have shown counts. `None` if there is no work left.
    fn try_block(&mut self, start: u64, state: I::State) -> Option<bool> {
        let size = self.found.blocks.len() + self.found.targets.len();
        self.work.take_many(size as u64)?;
        let is_prologue = self.is_prologue(start, &state);
        let before = self.found.clone();
        let doubtful = self.doubtful.len();
        (self.tried, self.belongs) = (start, false);
        self.found.evidence.disagrees = false;
        let has_followed = self.follow(start, state).is_some();
        let evidence = &mut self.found.evidence;
        let belongs = has_followed && (self.belongs || is_prologue) && !evidence.disagrees;
        evidence.disagrees |= before.evidence.disagrees;
        if !belongs {
            self.found = before;
            self.doubtful.truncate(doubtful);
        }
        Some(belongs)
    }

    /// Returns whether code begins as a function, or the part of one for which it needs a frame: with the first save of a
    /// caller's register.
    fn is_prologue(&self, start: u64, state: &I::State) -> bool {
        let first = I::decode(self.code, start).and_then(|mut code| code.next());
        state.is_at_start() && first.is_some_and(|first| state.is_first_save(&first))
    }

    /// Follows all paths from an address. `None` if the code cannot be a function's.
    fn follow(&mut self, start: u64, state: I::State) -> Option<()> {
        let mut paths = Paths::from(start, state);
        while let Some((start, state)) = paths.pop() {
            let mut divided = None;
            let mut has_changed = true;
            if self.found.blocks.contains_key(&start) {
                has_changed = self.arrive(start, &state);
            } else {
                let before = self.found.blocks.range(..start).next_back();
                let before = before.filter(|(_, block)| block.end > start);
                divided = before.map(|(before, _)| *before);
                let block = Block {
                    state,
                    end: start,
                    changes: 0,
                };
                self.found.blocks.insert(start, block);
            }
            while let Some(state) = paths.pop_at(start) {
                has_changed |= self.arrive(start, &state);
            }
            if has_changed {
                self.run(start, &mut paths)?;
            }
            if let Some(before) = divided {
                self.run(before, &mut paths)?;
            }
        }
        Some(())
    }

    /// Notes that another path leads to a block. Returns whether less is known there than before.
    fn arrive(&mut self, start: u64, state: &I::State) -> bool {
        let Some(known) = self.found.blocks.get(&start) else {
            return false;
        };
        self.belongs |= start < self.tried;
        let (theirs, mine) = (known.state.stack(), state.stack());
        let agrees = theirs == mine;
        self.found.evidence.disagrees |= !agrees;
        if !agrees && theirs.is_some() && mine.is_some() {
            let mut both = state.clone();
            both.meet(&known.state);
            self.found.evidence.conflicts |= both.rule() == Rule::Unsupported;
        }
        // Both lead to the same code.
        let (doubt, other) = (state.doubt(), known.state.doubt());
        if agrees && state.stack().is_some() {
            self.found.link(doubt, other);
            self.found.link(other, doubt);
        }
        self.meet(start, state)
    }

    /// Forgets what a path to a block does not agree on. Returns whether anything was forgotten.
    fn meet(&mut self, start: u64, state: &I::State) -> bool {
        let block = self.found.blocks.get_mut(&start);
        block.is_some_and(|block| {
            let has_changed = block.changes < MAX_VISITS && block.state.meet(state);
            block.changes += u32::from(has_changed);
            has_changed
        })
    }

    /// Returns where a block ends that goes on at an address: where the next one starts, or a path that is left to follow.
    fn next_block(&self, from: u64, paths: &Paths<I::State>) -> u64 {
        let following = self.found.blocks.range(from..).next();
        let following = following.map(|(start, _)| *start);
        let next = following.into_iter().chain(paths.next_from(from)).min();
        next.unwrap_or(u64::MAX)
    }

    /// Follows a block up to a jump or the next block.
    fn run(&mut self, start: u64, paths: &mut Paths<I::State>) -> Option<()> {
        let block = self.found.blocks.get(&start)?;
        let mut state = block.state.clone();
        let mut code = I::decode(self.code, start)?;
        let mut is_prologue = start == self.code.start;
        let (mut at, mut before) = (start, None::<I::Instruction>);
        // No other blocks are added meanwhile, but paths.
        let mut next_block = self.next_block(start.saturating_add(1), paths);
        loop {
            if let Some(call) = before.filter(Instruction::is_call)
                && self.may_not_return(at, call.called(), &mut state)?
            {
                break;
            }
            if at > next_block {
                // It is inside of an instruction.
                next_block = self.next_block(at, paths);
            }
            if at == next_block {
                paths.push(at, state);
                break;
            }
            self.work.take()?;
            let Some(instruction) = code.next() else {
                self.found.evidence.returns |= self.goes_on_as_next(at, before.as_ref(), &state);
                break;
            };
            at = instruction.next();
            is_prologue &= instruction.flow() == Flow::Next && !instruction.is_call();
            self.found.evidence.saves |= is_prologue && state.is_first_save(&instruction);
            if !self.step(&instruction, before.as_ref(), &mut state, paths)? {
                break;
            }
            if instruction.flow() != Flow::Next {
                next_block = next_block.min(paths.next_from(at).unwrap_or(u64::MAX));
            }
            before = Some(instruction);
        }
        self.found.blocks.get_mut(&start)?.end = at;
        Some(())
    }

    /// Returns whether a path ends where another function starts, with the stack as at the start of this one: assembly has
    /// functions that begin with an instruction more than the next one.
    fn goes_on_as_next(&self, at: u64, before: Option<&I::Instruction>, state: &I::State) -> bool {
        let is_call = before.is_some_and(Instruction::is_call);
        let is_next = at == self.code.end && self.code.starts.binary_search(&at).is_ok();
        self.code.is_named() && is_next && !is_call && state.is_at_start()
    }

    /// Returns whether the path ends at a call before an address, or is only followed if no other one leads there: in the
    /// second run, if other code follows, so that the callee may not return. In the first run, what follows is in doubt.
    fn may_not_return(
        &mut self,
        at: u64,
        callee: Option<u64>,
        state: &mut I::State,
    ) -> Option<bool> {
        if callee.is_some_and(|callee| self.returning.contains(&callee)) {
            return Some(false);
        }
        let known = self.known.as_ref();
        // Padding is behind the last instruction of a function, or before a loop. A function that ends where the next one
        // may start has none.
        let start = Some(at).filter(|at| I::may_start_behind_call(self.code, *at));
        let next = I::padding_end(self.code, at, self.work)?.or(start);
        let is_inside = match next {
            Some(next) => I::is_inside_function(self.code, next, self.work)?,
            None => false,
        };
        match callee {
            Some(callee) if next.is_some() => self.found.callees.add_doubtful(callee),
            Some(callee) if state.doubt().is_none() => self.found.callees.add_followed(callee, at),
            _ => {}
        }
        if let Some(next) = next.filter(|_| !is_inside) {
            self.found.doubts.insert(next);
            let has_frame = state.stack().is_some() && !state.is_stack_of_start();
            if has_frame && self.found.is_sure(state) {
                self.found.framed_doubts.insert(next);
            }
            self.found.link(state.doubt(), Some(next));
            state.set_doubt(next);
            let is_end = known.is_some_and(|known| !known.confirmed.contains(&next));
            self.found.ends.extend(is_end.then_some(next));
            return Some(is_end);
        }
        let next = next.unwrap_or(at);
        let is_target = known.is_some_and(|known| known.targets.contains(&next));
        if is_target {
            self.doubtful.push((next, state.clone()));
        }
        Some(is_target)
    }

    /// Follows an instruction, which another one is before. Returns whether the next one belongs to the same block. `None` if
    /// the code cannot be a function's.
    fn step(
        &mut self,
        instruction: &I::Instruction,
        before: Option<&I::Instruction>,
        state: &mut I::State,
        paths: &mut Paths<I::State>,
    ) -> Option<bool> {
        match instruction.flow() {
            Flow::Conditional(target) => {
                self.jump(target, state, paths, true)?;
                return Some(true);
            }
            Flow::Jump(target) => self.jump(target, state, paths, false)?,
            // Without a frame, it is a call that returns to the caller, or its targets are as the start.
            Flow::IndirectJump if state.is_stack_of_start() => {
                self.found.evidence.returns |= state.has_removed_frame();
                if I::is_table_jump(instruction, before) {
                    self.found.indirect_ends.insert(instruction.next(), true);
                } else {
                    // A part that was moved out of a function would have to remove that one's frame before.
                    self.found.evidence.returns |= self.code.is_named() && state.is_at_start();
                }
            }
            Flow::IndirectJump => {
                self.found.indirect_ends.insert(instruction.next(), false);
                // Another function may end with it: what is guessed of its targets must not confirm that it is this one's.
                let is_known = state.doubt().is_none() || self.known.is_some();
                if is_known || I::is_table_jump(instruction, before) {
                    self.jump_through_table(state);
                }
            }
            Flow::Return => {
                let is_start = state.returns(instruction);
                self.found.evidence.returns |= is_start && self.found.is_sure(state);
                self.found.link(state.doubt().filter(|_| is_start), None);
                self.belongs |= is_start;
                self.leave(state, is_start)?;
            }
            Flow::Next => {
                let address = instruction.address();
                self.found
                    .addresses
                    .extend(address.filter(|it| self.code.contains(*it)));
                return Some(state.advance(instruction, &mut self.scratch));
            }
        }
        Some(false)
    }

    /// Notes what is known at an indirect jump out of a frame.
    fn jump_through_table(&mut self, state: &I::State) {
        let Some(known) = &mut self.found.indirect else {
            self.found.indirect = Some(state.clone());
            return;
        };
        // Another jump to an address that the function takes.
        let is_same = known.stack() == state.stack();
        self.belongs |= is_same && self.found.addresses.contains(&self.tried);
        known.meet(state);
    }

    /// Follows a jump. `None` if the code cannot be a function's.
    fn jump(
        &mut self,
        target: u64,
        state: &I::State,
        paths: &mut Paths<I::State>,
        is_conditional: bool,
    ) -> Option<()> {
        // A function that calls itself has removed its frame before.
        let is_own = target != self.code.start || state.is_stack_of_start();
        if self.code.contains(target) && is_own {
            self.found.targets.insert(target);
            paths.push(target, state.clone());
            return Some(());
        }
        // Compilers move what is seldom executed elsewhere (`.cold`): conditional jumps lead there with any stack.
        if is_conditional {
            return Some(());
        }
        // Such parts jump back, but to no function's start, and to code with its frame.
        let is_other =
            self.code.starts.binary_search(&target).is_ok() || self.code.tails.contains(target);
        self.found.evidence.returns |= state.has_removed_frame() || is_other && state.is_at_start();
        self.leave(state, false)
    }

    /// Leaves the function. `None` if that is impossible, although calls that never return are known. A function that is known
    /// to be one may leave its frame to what ends the program.
    fn leave(&mut self, state: &I::State, returns: bool) -> Option<()> {
        let is_balanced = returns || state.is_balanced();
        self.found.evidence.disagrees |= !is_balanced;
        (is_balanced || self.known.is_none() || self.code.is_function).then_some(())
    }

    /// The rules of all instructions that were reached. `None` if there is no work left.
    fn rules(&mut self) -> Option<CodeRules> {
        let mut rules = CodeRules::default();
        let mut blocks = self.found.blocks.iter().peekable();
        while let Some((start, block)) = blocks.next() {
            let mut state = block.state.clone();
            let next = blocks.peek().map_or(u64::MAX, |(next, _)| **next);
            let mut code = I::decode(self.code, *start)?;
            let mut at = *start;
            // As far as it was followed: what is behind a call that never returns is not reached.
            let end = block.end.min(next);
            loop {
                self.work.take()?;
                let instruction = code.next().filter(|it| at < end && it.is_valid());
                let Some(instruction) = instruction else {
                    rules.end(at);
                    break;
                };
                rules.add(at, state.rule());
                rules.calls.extend(instruction.called());
                let removes_record = state.removes_record(&instruction);
                let inside = at + 1;
                at = instruction.next();
                if !state.advance(&instruction, &mut self.scratch) {
                    rules.end(at);
                    break;
                }
                if removes_record {
                    // The rule of a caller is that of the byte before its return address.
                    rules.add(inside, state.rule());
                    rules.removed_record.get_or_insert(inside);
                }
            }
        }
        Some(rules)
    }

    /// The first instruction from a block on that none has reached, if it is no padding.
    fn first_unreached(&mut self, from: u64) -> Option<u64> {
        let mut reached = from;
        let blocks = self.found.blocks.range(from..);
        let ends = blocks.map(|(start, block)| (*start, block.end));
        for (start, end) in ends.chain([(self.code.end, self.code.end)]) {
            self.work.take()?;
            if start > reached {
                let unreached = I::skip_padding(self.code, reached, self.work);
                if unreached < start {
                    return Some(unreached);
                }
            }
            reached = reached.max(end);
        }
        None
    }
}
