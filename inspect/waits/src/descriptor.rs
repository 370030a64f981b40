//! What a descriptor refers to.

/// What the link in `/proc/PID/fd` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Object {
    /// A socket with this inode.
    Socket(u64),
    /// A pipe with this inode.
    Pipe(u64),
    /// A kind of object without a path: `eventfd`, `eventpoll`, `timerfd`.
    Anonymous(Vec<u8>),
    /// A file.
    Path(Vec<u8>),
}

impl Object {
    /// Parses the link's text. Paths start with `/`, so a file cannot be taken for anything else.
    pub(crate) fn parse(link: &[u8]) -> Self {
        let inode = |prefix: &[u8]| {
            let digits = link.strip_prefix(prefix)?.strip_suffix(b"]")?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        };
        if let Some(inode) = inode(b"socket:[") {
            return Self::Socket(inode);
        }
        if let Some(inode) = inode(b"pipe:[") {
            return Self::Pipe(inode);
        }
        match link.strip_prefix(b"anon_inode:") {
            Some(kind) => {
                let bare = kind
                    .strip_prefix(b"[")
                    .and_then(|kind| kind.strip_suffix(b"]"));
                Self::Anonymous(bare.unwrap_or(kind).to_vec())
            }
            None => Self::Path(link.to_vec()),
        }
    }
}

/// The number of descriptors that an epoll's `fdinfo` lists (fs/eventpoll.c, `ep_show_fdinfo`).
pub(crate) fn epoll_size(info: &[u8]) -> usize {
    let lines = info.split(|byte| *byte == b'\n');
    lines.filter(|line| line.starts_with(b"tfd:")).count()
}

/// A decimal field of an `fdinfo`.
pub(crate) fn info_field(info: &[u8], name: &[u8]) -> Option<i64> {
    let mut lines = info.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(b":"))?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_objects() {
        let parsed = |link: &str| Object::parse(link.as_bytes());
        assert_eq!(parsed("socket:[4711]"), Object::Socket(4711));
        assert_eq!(parsed("pipe:[8]"), Object::Pipe(8));
        assert_eq!(
            parsed("anon_inode:[eventfd]"),
            Object::Anonymous(b"eventfd".into())
        );
        assert_eq!(
            parsed("anon_inode:inotify"),
            Object::Anonymous(b"inotify".into())
        );
        for path in [
            "/socket:[4711]",
            "socket:[x]",
            "socket:[99999999999999999999]",
            "pipe:[",
            "",
        ] {
            assert_eq!(parsed(path), Object::Path(path.into()));
        }
    }

    #[test]
    fn fields_of_information_about_descriptors() {
        let info =
            b"pos:\t0\nflags:\t02\ntfd:        8 events:       19 data: 8  pos:0 ino:61 sdev:8\n\
            tfd:        9 events: 1\nPid:\t4711\nNSpid:\t4711\t1\n";
        assert_eq!(epoll_size(info), 2);
        assert_eq!(epoll_size(b""), 0);
        assert_eq!(info_field(info, b"Pid"), Some(4711));
        assert_eq!(info_field(info, b"NSpid"), None);
        assert_eq!(info_field(info, b"data"), None);
    }
}
