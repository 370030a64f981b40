//! An environment of Node.js: its class, its records, and the publication of its thread.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use otelctx_format::record::{ENTRY_HEADER_SIZE, HEADER_SIZE, MAX_VALUE_SIZE, RECOMMENDED_SIZE};

use crate::block::{Block, Blocks, MAX_ATTRIBUTES};
use crate::napi::{Call, Callback, CallbackInfo, Env, Value, value_type};
use crate::own_memory::OwnMemory;
use crate::probe::{self, WordSearch};
use crate::process;
use crate::tls::{self, Published};
use crate::v8::{GlobalSlot, Isolate, Local, V8, WeakCallbackInfo};

/// Size of the buffer that JavaScript writes a record to, in bytes: the longest one, and a value
/// with its header, which JavaScript encodes before it checks for room.
const BUFFER_SIZE: usize = RECOMMENDED_SIZE + ENTRY_HEADER_SIZE + MAX_VALUE_SIZE;

/// Returns a callback that runs a function with the environment and the first arguments.
macro_rules! callback {
    ($run:path) => {{
        unsafe extern "C" fn callback(env: Env, info: CallbackInfo) -> Value {
            // SAFETY: Node-API calls this with the running environment.
            let call = unsafe { Call::new(env) };
            let Some((arguments, data)) = call.arguments(info) else {
                return call.throw("Node-API failed");
            };
            // SAFETY: the function was made with its environment, which lives as long.
            $run(unsafe { &*data.cast::<Environment>() }, call, arguments)
        }
        callback
    }};
}

/// An environment. Functions of JavaScript's have its address; Node-API frees it after them. It is
/// shared: V8 may collect contexts whenever a function calls V8 or Node-API.
pub(crate) struct Environment {
    v8: &'static V8,
    isolate: Isolate,
    /// The slot of the class's template.
    template: GlobalSlot,
    /// The bytes of the buffer that JavaScript writes to.
    buffer: *const u8,
    /// Offset of the address of its record in an object, in bytes.
    record_offset: Cell<usize>,
    /// V8's `undefined`, which never moves.
    undefined: usize,
    search: RefCell<WordSearch>,
    /// The slot of the `AsyncLocalStorage`; null until it is published.
    key: Cell<GlobalSlot>,
    blocks: Blocks,
    /// Set once its end has begun: no record is made any more.
    has_ended: Cell<bool>,
}

impl Environment {
    /// Adds to `exports` what JavaScript calls. The error says why contexts cannot be published.
    pub(crate) fn start(call: Call, exports: Value) -> Result<(), String> {
        let v8 = V8::find().map_err(|name| format!("this Node.js does not export {name}"))?;
        let failed = || "Node-API failed".to_owned();
        let isolate = v8.isolate();
        if isolate.is_null() {
            return Err("V8 has no isolate on this thread".into());
        }
        // SAFETY: this is a callback of Node-API, on the isolate's thread.
        let class = unsafe { v8.class(isolate) };
        let (template, constructor) = class.ok_or("V8 could not make the class")?;
        let undefined: Local = call.undefined().cast();
        let (array, buffer) = call.buffer(BUFFER_SIZE).ok_or_else(failed)?;
        if undefined.is_null() {
            return Err(failed());
        }
        let environment = Box::new(Self {
            v8,
            isolate,
            // SAFETY: see above; both are handles.
            template: unsafe { v8.globalize(isolate, template) },
            buffer,
            record_offset: Cell::new(0),
            // SAFETY: see above.
            undefined: unsafe { *undefined },
            search: RefCell::default(),
            key: Cell::new(ptr::null_mut()),
            blocks: Blocks::new(),
            has_ended: Cell::new(false),
        });
        let data: *mut c_void = Box::into_raw(environment).cast();
        // SAFETY: the environment lives until the finalizer is called, which is after the hook.
        let environment = unsafe {
            call.own(data, finalize).ok_or_else(failed)?;
            call.at_end(end, data).ok_or_else(failed)?;
            &*data.cast::<Self>()
        };
        let marker = call.instance(constructor.cast()).ok_or_else(failed)?;
        environment.measure_record_offset(marker.cast())?;

        const FUNCTIONS: [(&CStr, Callback); 14] = [
            (c"create", callback!(create)),
            (c"append", callback!(append)),
            (c"invalidate", callback!(invalidate)),
            (c"invalidateBridged", callback!(invalidate_bridged)),
            (c"setTraceFlags", callback!(set_trace_flags)),
            (c"bytes", callback!(bytes)),
            (c"noteFrame", callback!(note_frame)),
            (c"verify", callback!(verify)),
            (c"open", callback!(open)),
            (c"registerKeys", callback!(register_keys)),
            (c"keys", callback!(keys)),
            (c"publish", callback!(publish)),
            (c"isPublished", callback!(is_published)),
            (c"hasOther", callback!(has_other)),
        ];
        for (name, callback) in FUNCTIONS {
            // SAFETY: they expect the environment, which lives as long as JavaScript runs in it.
            let function = unsafe { call.function(name, callback, data) }.ok_or_else(failed)?;
            call.set(exports, name, function).ok_or_else(failed)?;
        }
        let layout = call.object().ok_or_else(failed)?;
        for (name, value) in process::layout(environment.record_offset.get()) {
            let name = CString::new(name).map_err(|error| error.to_string())?;
            let value = call.number(value as u32);
            call.set(layout, &name, value).ok_or_else(failed)?;
        }
        call.set(exports, c"layout", layout)
            .and_then(|()| call.set(exports, c"buffer", array))
            .and_then(|()| call.set(exports, c"Base", constructor.cast()))
            .ok_or_else(failed)
    }

    fn measure_record_offset(&self, object: Local) -> Result<(), String> {
        let mut memory = own_memory()?;
        // SAFETY: this is a callback of Node-API, on the isolate's thread.
        if !unsafe { self.v8.is_instance(self.template, object) } {
            return Err("V8 does not recognize an object of the class".into());
        }
        // Two values in the same place: the first word with one of them may have it by chance.
        let mut found = None;
        for marker in [0x5a5a_7070_1234_5678_usize, 0x2424_9696_8765_4320] {
            // SAFETY: see above; the markers are even. They are removed below.
            let word = unsafe {
                self.v8
                    .set_record(object, ptr::without_provenance_mut(marker));
                *object
            };
            let offset = probe::record_offset(&mut memory, word, marker);
            if offset.is_none() || found.is_some_and(|found| Some(found) != offset) {
                found = None;
                break;
            }
            found = offset;
        }
        // SAFETY: see above.
        unsafe { self.v8.set_record(object, ptr::null_mut()) };
        let found = found.ok_or("V8 has the pointer of an object in an unknown place")?;
        self.record_offset.set(found);
        Ok(())
    }

    /// Returns the block of a context; `None` for other values, and if its record was freed.
    fn block(&self, object: Value) -> Option<*mut Block> {
        let object: Local = object.cast();
        if self.has_ended.get() {
            return None;
        }
        // SAFETY: this is a callback of Node-API; the object has the word at this offset.
        let record = unsafe {
            if !self.v8.is_instance(self.template, object) {
                return None;
            }
            let object = *object - probe::TAG + self.record_offset.get();
            *ptr::with_exposed_provenance::<usize>(object)
        };
        // Before it has a record, the field is `undefined`.
        let has_record = record != 0 && record & probe::TAG == 0;
        has_record.then(|| Block::of(ptr::with_exposed_provenance_mut(record)))
    }

    /// Returns the first bytes that JavaScript has written to the buffer.
    fn written(&self, size: usize) -> &[u8] {
        // SAFETY: the buffer has this size, and JavaScript does not run while they are used.
        unsafe { std::slice::from_raw_parts(self.buffer, size.min(BUFFER_SIZE)) }
    }

    /// Gives the object a record, which lives as long.
    fn create(&self, object: Value, attributes: usize, is_bridged: bool) -> bool {
        if self.has_ended.get() {
            return false;
        }
        let object: Local = object.cast();
        // SAFETY: this is a callback of Node-API, on the isolate's thread.
        let is_instance = unsafe { self.v8.is_instance(self.template, object) };
        let has_record = || self.block(object.cast()).is_some();
        if !is_instance || attributes > MAX_ATTRIBUTES || has_record() {
            return false;
        }
        let environment = ptr::from_ref(self);
        let record = self.written(HEADER_SIZE + attributes);
        let block = Block::new(environment, record, is_bridged);
        Block::record(block).expose_provenance();
        // SAFETY: see above; the block is in no list yet, and lives until `collected` or the end.
        unsafe {
            (*block).object = self.v8.globalize(self.isolate, object);
            self.blocks.add(block);
            self.v8.make_weak((*block).object, block.cast(), collected);
            self.v8.set_record(object, Block::record(block));
        }
        true
    }

    /// Appends attributes to the record, or replaces the ones it has.
    fn append(&self, object: Value, attributes: usize, replaces: bool) -> bool {
        let Some(block) = self.block(object) else {
            return false;
        };
        // SAFETY: an object's block is in the list. Readers find the old record or the new one.
        unsafe {
            let size = Block::size(block);
            let kept = if replaces { HEADER_SIZE } else { size };
            if kept + attributes > RECOMMENDED_SIZE {
                return false;
            }
            let attributes = &self.written(HEADER_SIZE + attributes)[HEADER_SIZE..];
            if !replaces && Block::append(block, attributes) {
                return true;
            }
            let attributes = attributes.to_vec();
            let new = Block::successor(block, kept, &attributes, &self.blocks);
            Block::record(new).expose_provenance();
            self.v8.make_weak((*new).object, new.cast(), collected);
            self.v8.set_record(object.cast(), Block::record(new));
            compiler_fence(Ordering::SeqCst);
            Block::free(block);
        }
        true
    }

    /// Returns the word of the current asynchronous context frame.
    fn frame(&self) -> Option<usize> {
        // SAFETY: this is a callback of Node-API, on the isolate's thread.
        unsafe { self.v8.embedder_data(self.isolate) }
    }

    fn note_frame(&self) -> Result<(), String> {
        let frame = self.frame().filter(|frame| *frame != self.undefined);
        let frame = frame.ok_or("AsyncLocalStorage does not use AsyncContextFrame")?;
        let mut memory = own_memory()?;
        let isolate = self.isolate as usize;
        self.search.borrow_mut().note(&mut memory, isolate, frame);
        Ok(())
    }

    /// Follows what is published as a reader does; `context` is the value of `key` now.
    fn verify(&self, key: Local, context: Value) -> Result<(), String> {
        let mut memory = own_memory()?;
        let offset = self.search.borrow().found();
        let offset = offset.ok_or("V8 has the asynchronous context in an unknown place")?;
        let frame = memory.word((self.isolate as usize).wrapping_add(offset));
        let frame = frame.filter(|frame| Some(*frame) == self.frame());
        let frame = frame.ok_or("V8 has the asynchronous context in a changing place")?;
        // SAFETY: the caller has checked that both are handles of objects; Node-API has called.
        let (hash, key, context) = unsafe {
            let context: Local = context.cast();
            (self.v8.identity_hash(key), *key, *context)
        };
        let value = probe::look_up(&mut memory, frame, key, hash);
        if value != Some(context) {
            return Err("V8 has the map of the asynchronous context in another form".into());
        }
        let block = self.block((&raw const context).cast_mut().cast());
        let record = block.map(|block| Block::record(block) as usize);
        let field = context.wrapping_sub(probe::TAG) + self.record_offset.get();
        if record.is_none() || memory.word(field) != record {
            return Err("an object has its record in another place".into());
        }
        Ok(())
    }

    /// Publishes for this thread. `key` is the `AsyncLocalStorage`. Returns the one that readers
    /// follow: that of the first copy of the package in this environment. `None` if the environment
    /// is ending.
    fn open(&self, key: Local) -> Option<Local> {
        let found = self.search.borrow().found();
        let offset = found.filter(|_| !self.has_ended.get())?;
        // SAFETY: the key is a handle of an object, as the slot of a global is; Node-API has
        // called.
        let hash = unsafe {
            if self.key.get().is_null() {
                self.key.set(self.v8.globalize(self.isolate, key));
            }
            self.v8.identity_hash(self.key.get())
        };
        Published::new(
            (self.isolate as usize).wrapping_add(offset),
            self.key.get() as usize,
            hash,
            self.record_offset.get() as u8,
            self.undefined,
        )
        .publish();
        Some(self.key.get())
    }

    /// Publishes nothing more, and frees the records.
    fn end(&self) {
        tls::close();
        self.has_ended.set(true);
        // SAFETY: this is the isolate's thread, and the isolate lives. Each slot is disposed of
        // once: the garbage collector's callback takes the block from the list, too.
        unsafe {
            let key = self.key.replace(ptr::null_mut());
            if !key.is_null() {
                self.v8.dispose(key);
            }
            self.v8.dispose(self.template);
            while let Some(block) = self.blocks.pop() {
                // JavaScript may still have the object.
                self.v8.set_record((*block).object, ptr::null_mut());
                self.v8.dispose((*block).object);
                Block::free(block);
            }
        }
    }
}

fn own_memory() -> Result<OwnMemory, String> {
    OwnMemory::open().map_err(|error| format!("no pipe to read its own memory with: {error}"))
}

/// Runs at the end of an environment.
unsafe extern "C" fn end(environment: *mut c_void) {
    // SAFETY: it was registered with an environment.
    unsafe { (*environment.cast::<Environment>()).end() }
}

/// Runs when the environment is gone.
unsafe extern "C" fn finalize(_: Env, environment: *mut c_void, _: *mut c_void) {
    // SAFETY: it is from `start`, and nobody has its address any more: `end` was called.
    drop(unsafe { Box::from_raw(environment.cast::<Environment>()) });
}

/// V8 has collected a context.
unsafe extern "C" fn collected(info: *const WeakCallbackInfo) {
    // SAFETY: the parameter is the object's block, which is in the list of its environment. V8
    // calls this on the isolate's thread.
    unsafe {
        let block: *mut Block = (*info).parameter.cast();
        let environment = (*block).environment;
        (*environment).v8.dispose((*block).object);
        (*environment).blocks.remove(block);
        Block::free(block);
    }
}

const NO_CONTEXT: &str = "not a Context";

/// `create(context, size)`: gives it the record in the buffer, with attributes of this size.
fn create(environment: &Environment, call: Call, [object, size, bridged]: [Value; 3]) -> Value {
    let size = call.u32_of(size).unwrap_or(u32::MAX);
    let is_bridged = call.bool_of(bridged) == Some(true);
    if environment.create(object, size as usize, is_bridged) {
        ptr::null_mut()
    } else {
        call.throw_type_error(NO_CONTEXT)
    }
}

/// `append(context, size, replaces)`: appends the attributes in the buffer, of this size, or
/// replaces all with them.
fn append(environment: &Environment, call: Call, [object, size, replaces]: [Value; 3]) -> Value {
    let size = call.u32_of(size);
    let size = size.filter(|size| *size as usize <= MAX_ATTRIBUTES);
    let replaces = call.bool_of(replaces) == Some(true);
    if size.is_some_and(|size| environment.append(object, size as usize, replaces)) {
        ptr::null_mut()
    } else {
        call.throw_type_error(NO_CONTEXT)
    }
}

/// `invalidate(context)`
fn invalidate(environment: &Environment, call: Call, [object]: [Value; 1]) -> Value {
    let Some(block) = environment.block(object) else {
        return call.throw_type_error(NO_CONTEXT);
    };
    // SAFETY: the object has it.
    unsafe { Block::invalidate(block) };
    ptr::null_mut()
}

/// `invalidateBridged()`: invalidates all contexts that stand for one of OpenTelemetry's API.
fn invalidate_bridged(environment: &Environment, _: Call, []: [Value; 0]) -> Value {
    // SAFETY: blocks are removed from the list before they are freed.
    unsafe { environment.blocks.invalidate_bridged() };
    ptr::null_mut()
}

/// `setTraceFlags(context, flags)`
fn set_trace_flags(environment: &Environment, call: Call, [object, flags]: [Value; 2]) -> Value {
    let flags = call.u32_of(flags);
    let flags = flags.and_then(|flags| u8::try_from(flags).ok());
    let (Some(block), Some(flags)) = (environment.block(object), flags) else {
        return call.throw_type_error(NO_CONTEXT);
    };
    // SAFETY: the object has it.
    unsafe { Block::set_trace_flags(block, flags) };
    ptr::null_mut()
}

/// `bytes(context)`: writes the record's bytes to the buffer, and returns their number.
fn bytes(environment: &Environment, call: Call, [object]: [Value; 1]) -> Value {
    let Some(block) = environment.block(object) else {
        return call.throw_type_error(NO_CONTEXT);
    };
    // SAFETY: the object has it; the buffer has room for the longest record.
    unsafe {
        let bytes = Block::bytes(block);
        let to = environment.buffer.cast_mut();
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        call.number(bytes.len() as u32)
    }
}

/// Returns what is wrong, as a string; `undefined` if nothing is.
fn reason(call: Call, result: Result<(), String>) -> Value {
    match result {
        Ok(()) => ptr::null_mut(),
        Err(reason) => call.string(&reason),
    }
}

/// `noteFrame()`: notes where V8 can have the current asynchronous context.
fn note_frame(environment: &Environment, call: Call, []: [Value; 0]) -> Value {
    reason(call, environment.note_frame())
}

/// `verify(storage, context)`: whether readers find this context, which is the storage's value now.
fn verify(environment: &Environment, call: Call, [key, context]: [Value; 2]) -> Value {
    let is_object = |value| call.type_of(value) == Some(value_type::OBJECT);
    if !is_object(key) || !is_object(context) {
        return call.throw_type_error(NO_CONTEXT);
    }
    reason(call, environment.verify(key.cast(), context))
}

/// `open(storage)`: publishes for this thread; returns the storage that readers follow.
fn open(environment: &Environment, call: Call, [key]: [Value; 1]) -> Value {
    let is_object = call.type_of(key) == Some(value_type::OBJECT);
    let published = is_object.then(|| environment.open(key.cast())).flatten();
    // A value of Node-API is the address of a tagged word, as the slot of a global is.
    published.map_or(ptr::null_mut(), <*mut usize>::cast)
}

/// `registerKeys(names, arePositional)`: returns their indexes.
fn register_keys(_: &Environment, call: Call, [names, are_positional]: [Value; 2]) -> Value {
    let are_positional = call.bool_of(are_positional) == Some(true);
    match process::register_keys(call, names, are_positional) {
        Ok(indexes) => call.array(indexes.into_iter().map(|index| call.number(index))),
        Err(error) => call.throw(&error),
    }
}

/// `isPublished()`: whether the process context is published.
fn is_published(_: &Environment, call: Call, []: [Value; 0]) -> Value {
    call.boolean(process::is_published())
}

/// `hasOther()`: whether another publisher has published a second process context.
fn has_other(_: &Environment, call: Call, []: [Value; 0]) -> Value {
    call.boolean(process::has_other())
}

/// `keys()`: the names of the process, by their indexes.
fn keys(_: &Environment, call: Call, []: [Value; 0]) -> Value {
    call.array(process::keys().iter().map(|name| call.string(name)))
}

/// `publish(pairs)`
fn publish(environment: &Environment, call: Call, [pairs]: [Value; 1]) -> Value {
    match process::publish(call, pairs, environment.record_offset.get()) {
        Ok(()) => ptr::null_mut(),
        Err(error) => call.throw(&error),
    }
}
