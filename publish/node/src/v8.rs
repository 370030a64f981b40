//! The functions of V8 that Node-API does not offer, by the names that Node.js exports. They are
//! the same in Node.js 22, 24 and 26; where one differs, the right one is chosen.
//!
//! V8 passes handles (`Local`) by value as the address of the word with the object; a method's
//! object is the first argument. That is the C calling convention of both architectures.

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;

/// `v8::Isolate*`.
pub(crate) type Isolate = *mut c_void;
/// `v8::Local`, and also `napi_value`: the address of a tagged word; null if there is none.
pub(crate) type Local = *mut usize;
/// The slot of a `v8::Global`, which the garbage collector updates when it moves the object.
pub(crate) type GlobalSlot = *mut usize;

/// The beginning of `v8::WeakCallbackInfo<void>` (v8-weak-callback-info.h).
#[repr(C)]
pub(crate) struct WeakCallbackInfo {
    isolate: Isolate,
    pub(crate) parameter: *mut c_void,
}

pub(crate) type WeakCallback = unsafe extern "C" fn(*const WeakCallbackInfo);

/// `v8::WeakCallbackType::kParameter` (v8-weak-callback-info.h).
const PARAMETER: c_int = 0;
/// `v8::ConstructorBehavior::kAllow` (v8-template.h).
const ALLOW: c_int = 1;
/// `v8::SideEffectType::kHasSideEffect` (v8-object.h).
const HAS_SIDE_EFFECT: c_int = 0;
/// `v8::kEmbedderDataTypeTagDefault` (v8-object.h).
const DEFAULT_TAG: u16 = 0;
/// The internal field that has the record.
const RECORD_FIELD: c_int = 0;

type FunctionTemplateNew = unsafe extern "C" fn(
    isolate: Isolate,
    callback: *const c_void,
    data: Local,
    signature: Local,
    length: c_int,
    behavior: c_int,
    side_effect: c_int,
    c_function: *const c_void,
    instance_type: u16,
    allowed_receivers_start: u16,
    allowed_receivers_end: u16,
) -> Local;

/// `v8::Object::SetAlignedPointerInInternalField`.
#[derive(Clone, Copy)]
enum SetPointer {
    /// Up to Node.js 24.
    Plain(unsafe extern "C" fn(Local, c_int, *mut c_void)),
    /// In later versions, with an `EmbedderDataTypeTag`.
    Tagged(unsafe extern "C" fn(Local, c_int, *mut c_void, u16)),
}

/// The functions of this process's V8.
pub(crate) struct V8 {
    current_isolate: unsafe extern "C" fn() -> Isolate,
    current_context: unsafe extern "C" fn(Isolate) -> Local,
    identity_hash: unsafe extern "C" fn(Local) -> c_int,
    globalize: unsafe extern "C" fn(Isolate, usize) -> GlobalSlot,
    dispose_global: unsafe extern "C" fn(GlobalSlot),
    make_weak: unsafe extern "C" fn(GlobalSlot, *mut c_void, WeakCallback, c_int),
    function_template_new: FunctionTemplateNew,
    instance_template: unsafe extern "C" fn(Local) -> Local,
    set_internal_field_count: unsafe extern "C" fn(Local, c_int),
    get_function: unsafe extern "C" fn(Local, Local) -> Local,
    has_instance: unsafe extern "C" fn(Local, Local) -> bool,
    embedder_data: unsafe extern "C" fn(Isolate) -> Local,
    set_pointer: SetPointer,
}

impl V8 {
    /// Returns the functions in this process; the name of the first one that it does not have.
    pub(crate) fn find() -> Result<&'static Self, &'static str> {
        static FOUND: OnceLock<Result<V8, &'static str>> = OnceLock::new();
        // SAFETY: nothing but the resolution of names happens.
        FOUND
            .get_or_init(|| unsafe { Self::resolve() })
            .as_ref()
            .map_err(|name| *name)
    }

    /// # Safety
    /// The functions must be those of V8 before they are called.
    unsafe fn resolve() -> Result<Self, &'static str> {
        // SAFETY: each type is that in V8's headers; the mangled name has most of it.
        unsafe {
            let set_pointer = c"_ZN2v86Object32SetAlignedPointerInInternalFieldEiPv";
            let set_tagged = c"_ZN2v86Object32SetAlignedPointerInInternalFieldEiPvt";
            let set_pointer = match (function(set_tagged), function(set_pointer)) {
                (Ok(set), _) => SetPointer::Tagged(set),
                (Err(_), Ok(set)) => SetPointer::Plain(set),
                (Err(_), Err(name)) => return Err(name),
            };
            let embedder_data = c"_ZN2v87Isolate36GetContinuationPreservedEmbedderDataEv";
            let embedder_data_2 = c"_ZN2v87Isolate38GetContinuationPreservedEmbedderDataV2Ev";
            Ok(Self {
                current_isolate: function(c"_ZN2v87Isolate10GetCurrentEv")?,
                current_context: function(c"_ZN2v87Isolate17GetCurrentContextEv")?,
                identity_hash: function(c"_ZN2v86Object15GetIdentityHashEv")?,
                globalize: function(
                    c"_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEm",
                )?,
                dispose_global: function(c"_ZN2v812api_internal13DisposeGlobalEPm")?,
                make_weak: function(
                    c"_ZN2v812api_internal8MakeWeakEPmPvPFvRKNS_16WeakCallbackInfoIvEEENS_16WeakCallbackTypeE",
                )?,
                function_template_new: function(
                    c"_ZN2v816FunctionTemplate3NewEPNS_7IsolateEPFvRKNS_20FunctionCallbackInfoINS_5ValueEEEENS_5LocalIS4_EENSA_INS_9SignatureEEEiNS_19ConstructorBehaviorENS_14SideEffectTypeEPKNS_9CFunctionEttt",
                )?,
                instance_template: function(c"_ZN2v816FunctionTemplate16InstanceTemplateEv")?,
                set_internal_field_count: function(
                    c"_ZN2v814ObjectTemplate21SetInternalFieldCountEi",
                )?,
                get_function: function(
                    c"_ZN2v816FunctionTemplate11GetFunctionENS_5LocalINS_7ContextEEE",
                )?,
                has_instance: function(
                    c"_ZN2v816FunctionTemplate11HasInstanceENS_5LocalINS_5ValueEEE",
                )?,
                embedder_data: function(embedder_data).or_else(|_| function(embedder_data_2))?,
                set_pointer,
            })
        }
    }

    /// Returns the isolate of the calling thread; null if it has entered none.
    pub(crate) fn isolate(&self) -> Isolate {
        // SAFETY: it reads a thread-local variable.
        unsafe { (self.current_isolate)() }
    }

    /// Returns the word that V8 carries from one asynchronous call to the next.
    ///
    /// # Safety
    /// The thread runs in the isolate, in a callback of Node-API.
    pub(crate) unsafe fn embedder_data(&self, isolate: Isolate) -> Option<usize> {
        // SAFETY: the caller runs in a callback of Node-API; a handle is the address of a word.
        unsafe {
            let local = (self.embedder_data)(isolate);
            (!local.is_null()).then(|| *local)
        }
    }

    /// Returns a class whose objects have a field for a record's address: template and constructor.
    ///
    /// # Safety
    /// See [`Self::embedder_data`].
    pub(crate) unsafe fn class(&self, isolate: Isolate) -> Option<(Local, Local)> {
        // SAFETY: the caller runs in a callback of Node-API; each handle is checked before its use.
        unsafe {
            let none = ptr::null_mut();
            let template = (self.function_template_new)(
                isolate,
                ptr::null(),
                none,
                none,
                0,
                ALLOW,
                HAS_SIDE_EFFECT,
                ptr::null(),
                0,
                0,
                0,
            );
            let context = (self.current_context)(isolate);
            if template.is_null() || context.is_null() {
                return None;
            }
            let instance = (self.instance_template)(template);
            if instance.is_null() {
                return None;
            }
            (self.set_internal_field_count)(instance, RECORD_FIELD + 1);
            let function = (self.get_function)(template, context);
            (!function.is_null()).then_some((template, function))
        }
    }

    /// Returns whether an object is one of [`Self::class`], or of a class that extends it.
    ///
    /// # Safety
    /// See [`Self::embedder_data`]; `template` is one, or the slot of one; `value` is a handle.
    pub(crate) unsafe fn is_instance(&self, template: Local, value: Local) -> bool {
        // SAFETY: the caller runs in a callback of Node-API, and passes a template and a handle.
        !value.is_null() && unsafe { (self.has_instance)(template, value) }
    }

    /// Sets the field of an object of the class.
    ///
    /// # Safety
    /// See [`Self::embedder_data`]; [`Self::is_instance`] is true for `object`, and the address is
    /// even.
    pub(crate) unsafe fn set_record(&self, object: Local, record: *mut u8) {
        let record = record.cast();
        // SAFETY: the caller runs in a callback of Node-API, and has checked the object's class.
        unsafe {
            match self.set_pointer {
                SetPointer::Plain(set) => set(object, RECORD_FIELD, record),
                SetPointer::Tagged(set) => set(object, RECORD_FIELD, record, DEFAULT_TAG),
            }
        }
    }

    /// # Safety
    /// See [`Self::embedder_data`]; `object` is a handle of an object.
    pub(crate) unsafe fn identity_hash(&self, object: Local) -> i32 {
        // SAFETY: the caller runs in a callback of Node-API, and passes a handle of an object.
        unsafe { (self.identity_hash)(object) }
    }

    /// Returns a slot that keeps the value alive.
    ///
    /// # Safety
    /// See [`Self::embedder_data`]; `value` is a handle.
    pub(crate) unsafe fn globalize(&self, isolate: Isolate, value: Local) -> GlobalSlot {
        // SAFETY: the caller runs in a callback of Node-API, and passes a handle.
        unsafe { (self.globalize)(isolate, *value) }
    }

    /// Has `callback` called, with `parameter`, when the slot's object is collected. It must
    /// dispose of the slot. Replaces an earlier callback.
    ///
    /// # Safety
    /// The slot is one of [`Self::globalize`] that was not disposed of.
    pub(crate) unsafe fn make_weak(
        &self,
        slot: GlobalSlot,
        parameter: *mut c_void,
        callback: WeakCallback,
    ) {
        // SAFETY: the caller passes a slot of `globalize` that was not disposed of.
        unsafe { (self.make_weak)(slot, parameter, callback, PARAMETER) }
    }

    /// # Safety
    /// See [`Self::make_weak`].
    pub(crate) unsafe fn dispose(&self, slot: GlobalSlot) {
        // SAFETY: the caller passes a slot of `globalize` that was not disposed of.
        unsafe { (self.dispose_global)(slot) }
    }
}

/// Returns the function of this name; if there is none, the name.
///
/// # Safety
/// `F` is the type of the function.
unsafe fn function<F: Copy>(name: &'static CStr) -> Result<F, &'static str> {
    const { assert!(mem::size_of::<F>() == mem::size_of::<*mut c_void>()) };
    // SAFETY: the name ends with a NUL; Node.js is the executable, or linked to it.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return Err(name.to_str().unwrap_or_default());
    }
    // SAFETY: the caller ensures that `F` is the type of the function, a pointer.
    Ok(unsafe { mem::transmute_copy(&address) })
}
