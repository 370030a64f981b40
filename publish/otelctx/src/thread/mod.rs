//! Thread contexts: their records, and how they get into the calling thread's slot.

mod attached;
mod attached_blocks;
mod attributes;
mod bytes;
mod chain;
mod context;
mod current;
mod in_place;
#[cfg(all(target_os = "linux", target_has_atomic = "64"))]
mod key_map;
mod keys;
mod pool;
pub mod raw;
mod scope;
mod shared;
mod shared_block;
mod state;

pub use attached::Attached;
pub use attributes::Attributes;
pub use context::Context;
pub use current::{append_current, visible_to_readers};
pub use in_place::{thread_context, ThreadContext};
#[cfg(all(target_os = "linux", target_has_atomic = "64"))]
pub(crate) use key_map::{adopt_key_map, continue_key_maps, is_regular, published_key_map};
#[cfg(all(target_os = "linux", target_has_atomic = "64"))]
pub(crate) use keys::Name;
pub(crate) use keys::{mark_published, registered_names};
pub use keys::{Key, KeyError};
pub use scope::InScope;
pub use shared::{AttachedOwned, AttachedShared, SharedContext};
pub(crate) use state::{State, ThreadState};
