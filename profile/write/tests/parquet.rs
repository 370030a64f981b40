//! Parquet files, as far as tests need no engine: others are in `cli/tests/viewers.rs`.

mod shop;

use std::fs;
use std::path::{Path, PathBuf};

use otelctx_profile::report::{AttributeFilter, Condition, Selection, TimeKind};
use otelctx_profile::{
    Aggregate, Clock, Error, Format, Input, Options, Profile, check_writable, convert,
};

/// A directory that goes away with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// All files below it.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(&self.0).unwrap();
                    files.push(name.to_str().unwrap().to_owned());
                }
            }
        }
        files.sort();
        files
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The footer of a file.
fn footer(bytes: &[u8]) -> &[u8] {
    let (head, tail) = bytes.split_last_chunk::<8>().unwrap();
    assert!(head.starts_with(b"PAR1") && tail.ends_with(b"PAR1"));
    let size = u32::from_le_bytes(tail[..4].try_into().unwrap());
    &head[head.len() - size as usize..]
}

fn selection(route: &str) -> Selection {
    let mut selection = Selection::default();
    selection.attributes.push(AttributeFilter {
        name: "http.route".to_owned(),
        condition: Condition::Is(route.to_owned()),
    });
    selection
}

fn parquet(folder: &Directory, from: &str, selection: &Selection, to: &str) -> bool {
    let input = Input::recording(&folder.0.join(from));
    let format = Format::from_path(Path::new(to)).unwrap();
    let to = format!("{}/{to}", folder.0.display());
    convert(&input, selection, format, &Options::default(), to.as_ref()).unwrap()
}

#[test]
fn a_recording_and_what_is_made_of_its_file_are_the_same() {
    let folder = Directory::new("parquet-same");
    let profile = shop::profile();
    for name in ["a.otlp", "a.parquet"] {
        let options = Options::default();
        profile.write_file(&folder.0.join(name), &options).unwrap();
    }
    let mut every = Selection::default();
    every.kinds = vec![TimeKind::Running, TimeKind::Waiting];
    assert!(parquet(&folder, "a.otlp", &every, "b.parquet"));
    let read = |name: &str| fs::read(folder.0.join(name)).unwrap();
    let whole = read("a.parquet");
    assert!(read("b.parquet") == whole);
    // A recording in two parts has a row group of each, so nothing of the first one is lost.
    let clock = profile.clock();
    let formats = [Format::Parquet];
    let mut all = Aggregate::new(&Options::default(), &formats, clock, 2);
    all.add(&profile);
    all.add(&profile);
    let path = folder.0.join("c.parquet");
    for _ in 0..2 {
        // Again, as where the first file could not be written.
        all.write_file(&path).unwrap();
        let twice = read("c.parquet");
        let footer_size = footer(&whole).len();
        let group = &whole[4..whole.len() - footer_size - 8];
        assert!(twice[4..].starts_with(group));
        assert!(twice[4 + group.len()..].starts_with(group));
    }
    // Nothing is written of a selection without samples.
    assert!(!parquet(
        &folder,
        "a.otlp",
        &selection("/none"),
        "d.parquet"
    ));
    assert!(!parquet(&folder, "a.otlp", &selection("/none"), "d/"));
    let expected = ["a.otlp", "a.parquet", "b.parquet", "c.parquet"];
    assert_eq!(folder.files(), expected);
}

#[test]
fn a_folder_has_a_file_for_each_hour_and_service() {
    let folder = Directory::new("parquet-folder");
    let write = |name: &str, start_unix| {
        let mut recording = shop::recording();
        let clock = recording.clock;
        recording.clock = Clock {
            start_unix,
            ..clock
        };
        let profile = Profile::new(recording, &mut shop::Names);
        profile
            .write_file(&folder.0.join(name), &Options::default())
            .unwrap();
    };
    // 22:13:20, and an hour later.
    write("a.otlp", 1_700_000_000_000_000_000);
    write("b.otlp", 1_700_003_600_000_000_000);
    assert!(parquet(&folder, "a.otlp", &Selection::default(), "fleet/"));
    assert!(parquet(&folder, "b.otlp", &Selection::default(), "fleet/"));
    let files = folder.files();
    let hours = ["2023-11-14T22", "2023-11-14T23"];
    let services = ["other%3Bx", "shop"];
    let expected = hours.map(|hour| {
        services.map(|service| format!("fleet/hour={hour}/service={service}/part.parquet"))
    });
    assert_eq!(files[2..], expected.concat());
    let path = |end: &str| PathBuf::from(format!("{}/{end}", folder.0.display()));
    assert!(check_writable(&path("fleet/")).is_ok());
    assert!(check_writable(&path("new/")).is_ok());
    for refused in ["a.otlp/", "fleet"] {
        let error = check_writable(&path(refused)).unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{refused}: {error}");
    }
}
