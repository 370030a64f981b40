//! Modules and their files.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use foldhash::fast::RandomState;
use otelctx_reader::remote::{self, Device};
use otelctx_sample::{Module, ModuleFiles};

use super::report::{FileId, Region};

/// Maximum number of modules that are kept: a machine that builds programs all day runs many files.
const MAX_MODULES: usize = 16 * 1024;

/// The modules of all processes, which share most files, and the files that are kept open.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    known: HashSet<Arc<Module>, RandomState>,
    /// Build IDs by device and inode. The inode of a file that is not kept open may be reused.
    build_ids: HashMap<(Device, u64), Vec<u8>, RandomState>,
    pub(crate) files: ModuleFiles,
}

impl Modules {
    /// Keeps the file of a module of a sampled process open.
    pub(super) fn need(
        &self,
        process: Option<&remote::Process>,
        range: (u64, u64),
        module: &Module,
    ) {
        let is_kept = self.files.need(module);
        if !is_kept && !module.build_id.is_empty() && !self.files.had_no_room(module) {
            self.keep(process, range, module);
            self.files.need(module);
        }
    }

    /// Returns the module of a region of a process, whose file is mapped in `range`. Keeps the file open as a spare one.
    pub(super) fn find(
        &mut self,
        process: Option<&remote::Process>,
        region: Region,
        range: (u64, u64),
    ) -> Arc<Module> {
        let mut module = Module {
            path: region.path,
            ..Module::default()
        };
        match region.file {
            FileId::BuildId(build_id) => {
                module.build_id = build_id;
                if !self.files.contains(&module) {
                    self.keep(process, range, &module);
                }
            }
            FileId::Inode(_, 0) if module.path.is_empty() => "//anon".clone_into(&mut module.path),
            FileId::Inode(_, 0) => {}
            FileId::Inode(device, inode) => {
                self.identify(process, range, device, inode, &mut module);
            }
        }
        self.intern(module)
    }

    /// Opens the file of a module with a build ID, and keeps it open as a spare one.
    fn keep(&self, process: Option<&remote::Process>, range: (u64, u64), module: &Module) {
        let (path, build_id) = (&module.path, &module.build_id);
        let mapped = process
            .and_then(|process| process.mapped_file_by_build_id(range, path.as_bytes(), build_id));
        let at_path = || remote::module::open_by_build_id(Path::new(path), build_id);
        if let Some(file) = mapped.or_else(at_path) {
            self.files.keep_spare(module, file);
        }
    }

    /// Identifies the file of a module: by its build ID, otherwise by device and inode.
    fn identify(
        &mut self,
        process: Option<&remote::Process>,
        range: (u64, u64),
        device: Device,
        inode: u64,
        module: &mut Module,
    ) {
        if let Some(build_id) = self.build_ids.get(&(device, inode)) {
            module.build_id.clone_from(build_id);
            return;
        }
        let mapped = process
            .and_then(|process| process.mapped_file(range, module.path.as_bytes(), device, inode));
        let at_path = || remote::module::open_mapped(Path::new(&module.path), device, inode);
        let file = mapped.or_else(at_path);
        let build_id = file.as_ref().and_then(remote::module::build_id);
        module.build_id = build_id.unwrap_or_default();
        // On a device of subvolumes or layers, several files can have the same inode number.
        let of_stat = file.as_ref().and_then(|it| Device::of_file(it).ok());
        let of_stat = of_stat.unwrap_or(device);
        if module.build_id.is_empty() {
            module.device = u64::from(of_stat.major) << 32 | u64::from(of_stat.minor);
            module.inode = inode;
        } else if of_stat == device {
            if self.build_ids.len() >= MAX_MODULES {
                self.build_ids.clear();
            }
            self.build_ids
                .insert((device, inode), module.build_id.clone());
        }
        if let Some(file) = file {
            self.files.keep_spare(module, file);
        }
    }

    fn intern(&mut self, module: Module) -> Arc<Module> {
        if let Some(known) = self.known.get(&module) {
            return Arc::clone(known);
        }
        if self.known.len() >= MAX_MODULES {
            self.known.clear();
        }
        let module = Arc::new(module);
        self.known.insert(Arc::clone(&module));
        module
    }

    /// Clears the modules for a new catalog. Files stay open.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.build_ids.clear();
    }
}
