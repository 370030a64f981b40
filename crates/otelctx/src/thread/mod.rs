//! The thread context: records, and what puts them into the calling thread's slot.

mod attached;
mod attached_blocks;
mod attributes;
mod bytes;
mod chain;
mod current;
mod in_place;
mod keys;
mod pool;
mod record;
mod scope;
mod shared;
mod shared_block;
mod state;

pub use attached::Attached;
pub use attributes::Attributes;
pub use current::{append_current, current, swap_current};
pub use in_place::{thread_record, thread_slot, ThreadRecord};
pub(crate) use keys::{adopt_key_map, mark_published, published_key_map, registered_names, Name};
pub use keys::{Key, KeyError};
pub use record::Record;
pub use scope::InScope;
pub use shared::{AttachedOwned, AttachedShared, SharedRecord};
pub(crate) use state::State;
