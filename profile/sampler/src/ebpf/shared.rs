//! Array maps, mapped into memory, which this process shares with the program.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use aya::maps::MapData;

// <linux/bpf.h>.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Creates an array map with one value of type `T`, which can be mapped into memory.
pub(super) fn create<T>() -> io::Result<OwnedFd> {
    /// The first members of `union bpf_attr` for `BPF_MAP_CREATE`; the kernel takes the rest as 0.
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
    }

    let attributes = Attributes {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<T>() as u32,
        max_entries: 1,
        map_flags: BPF_F_MMAPABLE,
    };
    // SAFETY: these attributes have no pointers.
    let map = unsafe { bpf(BPF_MAP_CREATE, &attributes) }?;
    // SAFETY: the kernel has just returned this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(map) })
}

/// Calls bpf(2) with the first members of `union bpf_attr`.
///
/// # Safety
/// Pointers in `attributes` must be valid for the command.
unsafe fn bpf<A>(command: libc::c_int, attributes: &A) -> io::Result<libc::c_int> {
    // SAFETY: the size is that of the attributes; the caller ensures the rest.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_ref(attributes),
            size_of::<A>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as libc::c_int)
}

/// Sets or removes an element of an array of maps; aya can only set them. Returns when all earlier
/// runs of programs have ended: the kernel waits for them (kernel/bpf/syscall.c,
/// `maybe_wait_bpf_programs`).
pub(super) fn set_map(
    maps: BorrowedFd<'_>,
    index: u32,
    map: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }

    let value = map.map(|map| map.as_raw_fd());
    let attributes = Attributes {
        map: maps.as_raw_fd() as u32,
        padding: 0,
        key: (&raw const index) as u64,
        value: value
            .as_ref()
            .map_or(0, |value| ptr::from_ref(value) as u64),
        flags: 0,
    };
    let command = match map {
        Some(_) => BPF_MAP_UPDATE_ELEM,
        None => BPF_MAP_DELETE_ELEM,
    };
    // SAFETY: this function owns key and value, which outlive the call; both have four bytes.
    unsafe { bpf(command, &attributes) }.map(drop)
}

/// Maps `size` bytes of a descriptor, shared, at an address that the kernel chooses.
pub(super) fn map_shared(descriptor: libc::c_int, size: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: without an address, a new mapping touches no other memory.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            descriptor,
            0,
        )
    };
    let mapped = NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED);
    mapped.ok_or_else(io::Error::last_os_error)
}

pub(super) fn page_size() -> usize {
    // SAFETY: sysconf(3) takes any number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The values of a map, which the kernel reads and writes at any time: accessed through raw
/// pointers and atomics alone.
#[derive(Debug)]
pub(super) struct Shared<T> {
    values: NonNull<T>,
    pub(super) count: usize,
    /// Programs that are loaded later name it by this descriptor's number.
    _map: Option<MapData>,
    marker: PhantomData<T>,
}

// SAFETY: the mapping is this value's own, and no thread has a reference into it.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Maps `count` values of a map, each of this type's size: a multiple of 8.
    pub(super) fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let size = size_of::<T>().checked_mul(count);
        let size = size.ok_or(io::ErrorKind::OutOfMemory)?;
        let values = map_shared(map.as_raw_fd(), size)?;
        Ok(Self {
            values: values.cast(),
            count,
            _map: None,
            marker: PhantomData,
        })
    }

    /// Maps all values of a map of the program, and keeps it open.
    pub(super) fn of(map: MapData) -> io::Result<Self> {
        let mut shared = Self::of_open(&map)?;
        shared._map = Some(map);
        Ok(shared)
    }

    /// Maps all values of a map of the program, which stays open elsewhere.
    pub(super) fn of_open(map: &MapData) -> io::Result<Self> {
        let count = map.info().map_err(io::Error::other)?.max_entries();
        Self::map(map.fd().as_fd(), count as usize)
    }

    /// Returns a pointer to a value.
    ///
    /// # Panics
    /// Panics if there are not that many.
    pub(super) fn value(&self, index: usize) -> *mut T {
        assert!(index < self.count, "{index} of {}", self.count);
        // SAFETY: `count` values are mapped.
        unsafe { self.values.as_ptr().add(index) }
    }

    /// Writes to an array of the first value, from an index on.
    ///
    /// # Panics
    /// Panics if the array is not that long.
    pub(super) fn write<I: Copy, const N: usize>(
        &mut self,
        array: impl FnOnce(*mut T) -> *mut [I; N],
        at: usize,
        items: &[I],
    ) {
        assert!(
            at <= N && items.len() <= N - at,
            "{at} + {} of {N}",
            items.len()
        );
        let array = array(self.value(0));
        // SAFETY: `member!` passes an array in the value, which is mapped, and the assertion keeps
        // the items within it. No reference to the value exists.
        unsafe {
            let to = array.cast::<I>().add(at);
            ptr::copy_nonoverlapping(items.as_ptr(), to, items.len());
        }
    }
}

/// A pointer to a member of a value, for [`Shared::write`].
macro_rules! member {
    ($value:ty, $name:ident) => {
        // SAFETY: `Shared::write` passes a pointer to a value that it has mapped.
        |value: *mut $value| unsafe { &raw mut (*value).$name }
    };
}
pub(super) use member;

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped this many bytes, and they are not used any more.
        unsafe {
            libc::munmap(self.values.as_ptr().cast(), size_of::<T>() * self.count);
        }
    }
}
