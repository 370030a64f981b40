//! The thread context: records, and how they get into the calling thread's slot.

mod attached;
mod attached_blocks;
mod attributes;
mod bytes;
mod chain;
mod current;
mod in_place;
#[cfg(all(target_os = "linux", target_has_atomic = "64"))]
mod key_map;
mod keys;
mod pool;
mod record;
mod scope;
mod shared;
mod shared_block;
mod state;

pub use attached::Attached;
pub use attributes::Attributes;
pub use current::{append_current, current, current_record, set_current, swap_current};
pub use in_place::{thread_record, thread_slot, ThreadRecord};
#[cfg(all(target_os = "linux", target_has_atomic = "64"))]
pub(crate) use key_map::{adopt_key_map, published_key_map};
#[cfg(all(target_os = "linux", target_has_atomic = "64"))]
pub(crate) use keys::Name;
pub(crate) use keys::{mark_published, registered_names};
pub use keys::{Key, KeyError};
pub use record::Record;
pub use scope::InScope;
pub use shared::{AttachedOwned, AttachedShared, SharedRecord};
pub(crate) use state::State;
