//! The error of publishing a process context.

use std::fmt;
use std::io;

use otelctx_format::process_context::{MAX_DEPTH, MAX_VALUES};

/// The reason why a process context could not be published, updated or withdrawn.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// This copy of the crate has published one.
    AlreadyPublished,
    /// Another publisher in this process has published one: another library, or another copy or
    /// version of this crate that cannot withdraw it because records of both copies use the same
    /// key indexes for different names.
    Foreign {
        /// The line of `/proc/PID/maps` with its mapping.
        mapping: String,
    },
    /// This copy of the crate has not published a context in this process, or has withdrawn it.
    NotPublished,
    /// An attribute has an empty name.
    EmptyKey,
    /// An attribute of the process context has a name that is reserved for this crate.
    ReservedKey {
        /// The name.
        key: String,
    },
    /// There is nothing to publish: no attributes.
    Empty,
    /// The encoded context is too large.
    TooLarge {
        /// The encoded size in bytes.
        size: usize,
        /// The largest size allowed.
        limit: usize,
    },
    /// Values are nested too deep.
    TooDeep,
    /// There are too many values, including those in arrays and maps.
    TooManyValues,
    /// A system call failed.
    System {
        /// The call.
        call: &'static str,
        /// The call's `errno`.
        errno: i32,
    },
    /// The mapping would have no name, so no reader could find the context.
    Invisible {
        /// `errno` of `memfd_create`.
        memfd: i32,
        /// `errno` of `prctl(PR_SET_VMA_ANON_NAME)`.
        naming: i32,
    },
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |errno: &i32| io::Error::from_raw_os_error(*errno);
        match self {
            Self::AlreadyPublished => f.write_str(
                "a process context is already published, and a process has only one: change it \
                 with ProcessContext::modify, or replace it through its guard",
            ),
            Self::Foreign { mapping } => write!(
                f,
                "another publisher in this process has published a process context ({mapping}), and \
                 a process has only one: contexts of threads have no attributes, because nobody could \
                 know their names. Remove one publisher, or the second copy of otelctx \
                 (cargo tree -d shows it), whose keys contradict this one's; if its library was unloaded, \
                 only a new process can publish",
                mapping = mapping.escape_debug(),
            ),
            Self::NotPublished => f.write_str(
                "this copy of otelctx has no process context published in this process; publish one",
            ),
            Self::EmptyKey => {
                f.write_str("an attribute has an empty key, which readers reject; give it a name")
            }
            Self::ReservedKey { key } => write!(
                f,
                "the attribute \"{}\" describes thread contexts and is set by the publisher \
                 itself; use another name",
                key.escape_debug()
            ),
            Self::Empty => f.write_str("the process context is empty; set an attribute"),
            Self::TooLarge { size, limit } => write!(
                f,
                "the process context takes {size} bytes and at most {limit} are allowed; readers \
                 may refuse more: publish fewer attributes, or raise max_payload_size"
            ),
            Self::TooDeep => write!(
                f,
                "a value is nested deeper than {MAX_DEPTH} lists and maps, which readers reject"
            ),
            Self::TooManyValues => write!(
                f,
                "there are more than {MAX_VALUES} values, which readers reject; publish fewer"
            ),
            Self::System { call, errno } => {
                let reason = reason(errno);
                write!(f, "the process context was not published: {call}: {reason}")
            }
            Self::Invisible { memfd, naming } => write!(
                f,
                "the process context was not published, because no reader could find it: \
                 memfd_create: {}; prctl(PR_SET_VMA_ANON_NAME): {}. Allow memfd_create, \
                 or prctl on a kernel with CONFIG_ANON_VMA_NAME",
                reason(memfd),
                reason(naming)
            ),
        }
    }
}

impl std::error::Error for PublishError {}
