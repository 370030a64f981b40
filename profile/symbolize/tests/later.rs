//! A recording without functions gets the ones that it would have had.

mod tools;

use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use opentelemetry_proto::tonic::profiles::v1development::{ProfilesData, ProfilesDictionary};
use otelctx_fixtures::Compiler;
use otelctx_profile::sample::{Catalog, Counts, Event, Found, Mapping, Module, ModuleFiles};
use otelctx_profile::sample::{ProcessFacts, Sample};
use otelctx_profile::{
    Clock, Error, Format, Options, Profile, RecordedFile, Recording, SymbolQuery, Symbolizer, rules,
};
use otelctx_remote::module;
use otelctx_symbolize::{Symbols, find_files};
use prost::Message;
use tools::{Scratch, instructions, text, tool};

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let flags = ["-g", "-O2", "-Wl,--build-id"];
    let built = Compiler::gcc().program(&["inlined.c"], &flags)?;
    let path = scratch.0.join("inlined");
    fs::copy(built, &path).unwrap();
    Some(path)
}

/// Every instruction of two functions, where a thread was interrupted and where a call returns to.
fn recording(path: &Path) -> Recording {
    let file = fs::File::open(path).unwrap();
    let mut catalog = Catalog::new();
    let module = catalog.module(Module {
        path: text(path).into(),
        build_id: module::build_id(&file).unwrap(),
        ..Module::default()
    });
    let process = catalog.add_process(ProcessFacts {
        // No process has this ID.
        pid: i32::MAX,
        mappings: vec![Mapping {
            start: 0x1000_0000,
            end: 0x2000_0000,
            offset: 0,
            module,
            since: 0,
        }],
        ..ProcessFacts::default()
    });
    let thread = catalog.thread(process, 1, "t");
    let empty = catalog.native_stack(&[]);
    let addresses = instructions(path, &["serve", "main"]);
    let stacks = addresses.iter().flat_map(|address| {
        let address = 0x1000_0000 + address;
        [vec![address], vec![0x1000_0000, address, 0x5000_0000]]
    });
    let samples = stacks.enumerate().map(|(time, stack)| Sample {
        time: time as u64,
        cpu: 0,
        thread,
        event: Event::OnCpu,
        found: Found::NotPublished,
        gil: None,
        user_stack: catalog.native_stack(&stack),
        stack_end: None,
        kernel_stack: empty,
    });
    Recording {
        samples: samples.collect(),
        clock: Clock {
            start: 0,
            end: 1 << 30,
            start_unix: 0,
        },
        catalog,
        period: NonZeroU64::MIN,
        counts: Counts::default(),
    }
}

fn written(path: &Path, mut symbols: Symbols) -> Vec<u8> {
    let profile = Profile::new(recording(path), &mut symbols);
    let mut bytes = Vec::new();
    let options = Options::default();
    profile.write(Format::Otlp, &options, &mut bytes).unwrap();
    bytes
}

/// Adds functions to the file `input`; returns how many addresses of the program have one now.
fn resolve(input: &Path, output: &Path, directories: &[PathBuf]) -> usize {
    let recorded = RecordedFile::read(input).unwrap();
    let modules = recorded.unnamed().unwrap();
    let files = ModuleFiles::default();
    let found = find_files(&modules, directories, None);
    let mut symbols = Symbols::new().files(files.clone());
    let mut named = Vec::new();
    for (module, file) in modules.into_iter().zip(found) {
        let Some(file) = file else { continue };
        let facts = Module {
            path: module.path.clone(),
            build_id: module.identity.build_id.clone(),
            ..Module::default()
        };
        files.keep(&facts, file);
        let process = ProcessFacts::default();
        let functions = symbols.functions(SymbolQuery::new(&facts, &process), &module.offsets);
        named.push((module, functions));
    }
    recorded.write(&named, output).unwrap();
    let functions = named.iter().flat_map(|(_, functions)| functions);
    functions.filter(|it| !it.is_empty()).count()
}

/// A function as the file has it: name, source file and line.
type Named<'d> = (&'d str, &'d str, i64);

/// The address and the functions of each frame.
type Frames<'d> = Vec<(u64, Vec<Named<'d>>)>;

/// Each sample's time and frames.
fn stacks(data: &ProfilesData) -> Vec<(u64, Frames<'_>)> {
    let dictionary = data.dictionary.as_ref().unwrap();
    assert_eq!(rules::violations(data), [""; 0]);
    let profile = &data.resource_profiles[0].scope_profiles[0].profiles[0];
    let mut stacks = Vec::new();
    for sample in &profile.samples {
        let stack = &dictionary.stack_table[sample.stack_index as usize];
        let frames = stack.location_indices.iter();
        let frames: Vec<_> = frames.map(|index| frame(dictionary, *index)).collect();
        for time in &sample.timestamps_unix_nano {
            stacks.push((*time, frames.clone()));
        }
    }
    stacks.sort_unstable();
    stacks
}

fn frame(dictionary: &ProfilesDictionary, index: i32) -> (u64, Vec<Named<'_>>) {
    let location = &dictionary.location_table[index as usize];
    let text = |index: i32| dictionary.string_table[index as usize].as_str();
    let lines = location.lines.iter().map(|line| {
        let function = &dictionary.function_table[line.function_index as usize];
        let (name, file) = (function.name_strindex, function.filename_strindex);
        (text(name), text(file), line.line)
    });
    (location.address, lines.collect())
}

fn decoded(bytes: &[u8]) -> ProfilesData {
    ProfilesData::decode(bytes).unwrap()
}

#[test]
fn functions_equal_what_the_recorder_would_have_named() {
    let scratch = Scratch::new("later");
    let Some(program) = program(&scratch) else {
        return;
    };
    let expected = decoded(&written(&program, Symbols::new()));
    let file = scratch.0.join("profile.otlp");
    let output = scratch.0.join("named.otlp");
    let unnamed = written(&program, Symbols::new().without_functions());
    fs::write(&file, &unnamed).unwrap();
    assert!(resolve(&file, &output, &[]) > 10);
    let found = fs::read(&output).unwrap();
    assert_eq!(stacks(&decoded(&found)), stacks(&expected));
    // Several messages, as a Collector writes them; in place.
    let size = (unnamed.len() as u32).to_be_bytes();
    fs::write(&file, [&size[..], &unnamed, &size, &unnamed].concat()).unwrap();
    resolve(&file, &file, &[]);
    let messages = fs::read(&file).unwrap();
    let size = (found.len() as u32).to_be_bytes();
    assert_eq!(messages, [&size[..], &found, &size, &found].concat());
    // Nothing is left to do.
    assert_eq!(resolve(&output, &output, &[]), 0);
    assert_eq!(
        stacks(&decoded(&fs::read(&output).unwrap())),
        stacks(&expected)
    );
}

#[test]
fn a_replaced_file_names_nothing_and_the_original_does_wherever_it_is() {
    let scratch = Scratch::new("replaced-later");
    let Some(program) = program(&scratch) else {
        return;
    };
    let expected = decoded(&written(&program, Symbols::new()));
    let bare = written(&program, Symbols::new().without_functions());
    let (file, output) = (scratch.0.join("profile.otlp"), scratch.0.join("named.otlp"));
    fs::write(&file, &bare).unwrap();
    let original = scratch.0.join("original");
    fs::rename(&program, &original).unwrap();
    let id = module::build_id(&fs::File::open(&original).unwrap()).unwrap();
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    // Other code, and the same build ID without code.
    let other = Compiler::gcc().program(&["inlined.c"], &["-O1", "-Wl,--build-id"]);
    fs::copy(other.unwrap(), &program).unwrap();
    let directory = scratch.0.join("files");
    let by_id = directory.join(format!(".build-id/{}/{}", &id[..2], &id[2..]));
    fs::create_dir_all(by_id.parent().unwrap()).unwrap();
    let debug = by_id.with_extension("debug");
    tool(
        "objcopy",
        &["--only-keep-debug", text(&original), text(&debug)],
    );
    let directories = [directory.clone()];
    assert_eq!(resolve(&file, &output, &directories), 0);
    assert_eq!(
        stacks(&decoded(&fs::read(&output).unwrap())),
        stacks(&decoded(&bare))
    );
    for place in [by_id, debug, directory.join("inlined")] {
        fs::copy(&original, &place).unwrap();
        assert!(resolve(&file, &output, &directories) > 10, "{place:?}");
        let found = fs::read(&output).unwrap();
        assert_eq!(stacks(&decoded(&found)), stacks(&expected), "{place:?}");
        fs::remove_file(&place).unwrap();
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let scratch = Scratch::new("damaged-later");
    let Some(program) = program(&scratch) else {
        return;
    };
    let bytes = written(&program, Symbols::new().without_functions());
    let path = scratch.0.join("profile.otlp");
    for length in (1..bytes.len()).step_by(bytes.len() / 40) {
        fs::write(&path, &bytes[..length]).unwrap();
        let result = RecordedFile::read(&path).unwrap().unnamed();
        assert!(matches!(result, Err(Error::Malformed { .. })), "{length}");
    }
}
