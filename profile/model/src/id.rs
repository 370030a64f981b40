//! The IDs by which samples refer to data in a [`Catalog`](crate::Catalog).

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Its position in the catalog, from 0.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            pub(crate) fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("a catalog holds fewer than 2^32 entries of a kind"))
            }
        }
    )*};
}

ids! {
    /// A process running one program.
    ProcessId,
    /// A thread of a process.
    ThreadId,
    /// A thread context: IDs, flags and attributes.
    ContextId,
    /// A frame of a stack.
    FrameId,
    /// A list of frames, innermost first.
    StackId,
    /// A reason why threads wait.
    ReasonId,
    /// A file that code is mapped from.
    ModuleId,
}
