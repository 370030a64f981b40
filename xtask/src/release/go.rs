//! The Go modules: Go publishes a module when its tag is in the repository, and takes its files from there. So nothing is
//! uploaded; this tries the commit's modules as Go would get them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::files::{create_empty, write};
use crate::report::{Done, Words, command, output, passed, skipped};
use crate::repository;
use crate::workspace::{VERSION, git, have, root, target_dir};

/// The published modules, below `publish/go`.
const MODULES: [&str; 3] = ["", "otel", "grpc"];
/// What is below `publish/go` and not part of the first module: the others, and their tests.
const NOT_CORE: [&str; 3] = ["otel", "grpc", "tests"];

/// The tags that publish the modules.
pub(super) fn tags() -> impl Iterator<Item = String> {
    MODULES.into_iter().map(|module| match module {
        "" => format!("publish/go/v{VERSION}"),
        module => format!("publish/go/{module}/v{VERSION}"),
    })
}

/// Uses the modules of the commit in a new program, from a proxy that has them as Go packs them.
pub(super) fn attempt(_: &Path) -> Done {
    let core = core()?;
    check_names(&core)?;
    if !have("go") {
        return skipped("the modules are not tried: it takes go");
    }
    let folder = target_dir().join("release-go");
    create_empty(&folder)?;
    for module in MODULES {
        pack(&folder.join("proxy"), &core, module)?;
    }
    let program = include_str!("program.go").replace("MODULE", &core);
    write(&folder.join("program/main.go"), program)?;
    write(
        &folder.join("program/go.mod"),
        "module program\n\ngo 1.21\n",
    )?;
    let run = |arguments: &str| {
        let mut tool = command("go");
        tool.words(arguments).current_dir(folder.join("program"));
        let proxy = format!("file://{}", folder.join("proxy").display());
        let others = output(&mut command("go env GOPROXY"))?;
        tool.env("GOPROXY", format!("{proxy},{}", others.trim()));
        let host = core.split('/').next().unwrap_or_default();
        tool.envs([("GONOSUMDB", host), ("GOWORK", "off"), ("GOFLAGS", "")]);
        // Otherwise what an earlier run has packed is taken.
        tool.env("GOMODCACHE", folder.join("modules"));
        output(&mut tool)
    };
    run(&format!(
        "get {core}@v{VERSION} {core}/otel@v{VERSION} {core}/grpc@v{VERSION}"
    ))?;
    run("mod tidy")?;
    let said = run("run .")?;
    ensure!(said == "published\n", "the program said {said:?}");
    // Its folders are read-only.
    run("clean -modcache")?;
    passed(format!(
        "{} modules of {core}, in a new program",
        MODULES.len()
    ))
}

/// The first module's path: the repository's address, without its scheme, and the folder.
fn core() -> Result<String> {
    let address = repository::address_or_placeholder()?;
    let path = address.split_once("://").map_or(&*address, |it| it.1);
    Ok(format!("{path}/publish/go"))
}

/// Fails unless modules have the names and the versions of the release.
fn check_names(core: &str) -> Result<()> {
    let read = |file: &str| fs::read_to_string(root().join("publish/go").join(file));
    for module in MODULES {
        let path = if module.is_empty() {
            core.to_owned()
        } else {
            format!("{core}/{module}")
        };
        let file = Path::new(module).join("go.mod");
        let text = read(&file.to_string_lossy())?;
        ensure!(
            text.starts_with(&format!("module {path}\n")),
            "publish/go/{} is not for the module {path}: replace the repository's part of the names in go.mod and in imports",
            file.display()
        );
        let needs_core = format!("\t{core} v{VERSION}\n");
        ensure!(
            module.is_empty() || text.contains(&needs_core),
            "publish/go/{} does not require {core} v{VERSION}",
            file.display()
        );
    }
    let version = format!("const Version = \"{VERSION}\"\n");
    ensure!(
        read("detect.go")?.contains(&version),
        "publish/go/detect.go has another version than {VERSION}"
    );
    Ok(())
}

/// Writes a module of the commit as a proxy has it (`go help goproxy`).
fn pack(proxy: &Path, core: &str, module: &str) -> Result<()> {
    let folder = Path::new("publish/go").join(module);
    let tree = format!("HEAD:{}", folder.to_string_lossy().trim_end_matches('/'));
    let path = Path::new(core).join(module);
    let path = path.to_string_lossy();
    let path = path.trim_end_matches('/');
    let versions = proxy.join(path).join("@v");
    fs::create_dir_all(&versions)?;
    let mut archive = git("archive --format=zip");
    archive.arg(format!("--prefix={path}@v{VERSION}/"));
    archive
        .arg("--output")
        .arg(versions.join(format!("v{VERSION}.zip")));
    archive.arg(&tree);
    if module.is_empty() {
        let entries = output(git("ls-tree --name-only").arg(&tree))?;
        archive.args(entries.lines().filter(|entry| !NOT_CORE.contains(entry)));
    }
    output(&mut archive)?;
    let manifest =
        output(git("show").arg(format!("{tree}/go.mod"))).context("go.mod is not committed")?;
    write(&versions.join(format!("v{VERSION}.mod")), manifest)?;
    let info = format!("{{\"Version\": \"v{VERSION}\"}}");
    write(&versions.join(format!("v{VERSION}.info")), info)?;
    Ok(())
}
