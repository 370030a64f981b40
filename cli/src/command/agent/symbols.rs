//! Makes symbolizers with the settings that are in force.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use otelctx_profile::sample::ModuleFiles;
use otelctx_symbolize::{SharedServer, Symbols};

use super::settings::{Settings, current};

/// Makes symbolizers.
#[derive(Clone)]
pub(super) struct SymbolSource {
    settings: Arc<Mutex<Arc<Settings>>>,
    /// The settings that were used last.
    in_force: Arc<Settings>,
    server: Option<SharedServer>,
    files: ModuleFiles,
    is_ending: Arc<AtomicBool>,
}

impl SymbolSource {
    /// Makes them for these files of sampled code. Once `is_ending` is true, they resolve nothing more.
    pub(super) fn new(
        settings: Arc<Mutex<Arc<Settings>>>,
        files: ModuleFiles,
        is_ending: Arc<AtomicBool>,
    ) -> Self {
        let in_force = current(&settings);
        Self {
            server: in_force.server(),
            settings,
            in_force,
            files,
            is_ending,
        }
    }

    /// Takes over settings that were read again. Returns true if functions may have other names with them.
    pub(super) fn refresh(&mut self) -> bool {
        let settings = current(&self.settings);
        if Arc::ptr_eq(&settings, &self.in_force) {
            return false;
        }
        let before = std::mem::replace(&mut self.in_force, settings);
        if self.in_force.has_same_server(&before) {
            return !self.in_force.has_same_symbols(&before);
        }
        self.server = self.in_force.server();
        true
    }

    /// Returns the part of a CPU that resolving functions may take, by the settings of now.
    pub(super) fn cpu_part(&self) -> f64 {
        current(&self.settings).resolve_budget()
    }

    /// Makes a symbolizer.
    pub(super) fn symbols(&self) -> Symbols {
        self.in_force
            .symbols(self.server.clone(), &self.files, &self.is_ending)
    }

    /// Returns the files of the sampled code.
    pub(super) fn files(&self) -> &ModuleFiles {
        &self.files
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser as _;

    use super::super::settings::Arguments;
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    pub(in super::super) fn settings(arguments: &[&str]) -> Arc<Settings> {
        let line = Line::parse_from([&["agent"], arguments].concat());
        Arc::new(Settings::read(&line.arguments).unwrap())
    }

    #[test]
    fn a_new_budget_holds_at_once() {
        let shared = Arc::new(Mutex::new(settings(&["--cpu-budget", "3%"])));
        let files = ModuleFiles::default();
        let mut source = SymbolSource::new(Arc::clone(&shared), files, Arc::default());
        let is = |source: &SymbolSource, part: f64| (source.cpu_part() - part).abs() < 1e-9;
        assert!(is(&source, 0.01));
        *shared.lock().unwrap() = settings(&["--cpu-budget", "6%"]);
        assert!(is(&source, 0.02));
        assert!(!source.refresh() && is(&source, 0.02));
    }

    #[test]
    fn settings_of_names_are_taken_over_at_once() {
        let shared = Arc::new(Mutex::new(settings(&[])));
        let files = ModuleFiles::default();
        let mut source = SymbolSource::new(Arc::clone(&shared), files, Arc::default());
        assert!(!source.refresh());
        let server = ["--debuginfod", "http://localhost:1"];
        for (arguments, expected) in [
            (&["--interval", "7"][..], false),
            (&["--no-symbols"], true),
            (&["--no-symbols", "--debug-dir", "/srv/debug"], true),
            (&["--no-symbols", "--debug-dir", "/srv/debug"], false),
            (&server, true),
            (&server, false),
            (&[], true),
        ] {
            *shared.lock().unwrap() = settings(arguments);
            assert_eq!(source.refresh(), expected, "{arguments:?}");
            assert_eq!(source.server.is_some(), arguments == server);
            assert!(!source.refresh());
        }
    }
}
