//! What a program says of its calls.

use otelctx_reader::sample::NamedFrame;

/// A call, as V8 describes it in an error's stack.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct Call {
    function: Option<String>,
    file: Option<String>,
    line: u32,
    /// The line on which the function begins.
    first_line: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) stacks: usize,
    pub(crate) frames: usize,
}

impl Call {
    /// The calls in a line of the program's output.
    pub(crate) fn all(said: &str) -> Vec<Self> {
        serde_json::from_str(said).unwrap()
    }

    /// The function, as its frame has it.
    fn name(&self) -> String {
        let file = self.file.as_deref().unwrap_or_default();
        let file = file.rsplit('/').next().unwrap_or_default();
        match self.function.as_deref() {
            None if file.is_empty() => "(anonymous)".into(),
            None => format!("(anonymous {file}:{})", self.first_line),
            Some("eval") if file.is_empty() => "(anonymous)".into(),
            Some(name) => name.into(),
        }
    }
}

/// Compares a stack with the calls that the program says. Functions of Node.js itself, in which it waits, come before.
pub(crate) fn compare(what: &str, functions: &[NamedFrame], calls: &[Call], tally: &mut Tally) {
    let show = || {
        let shown = |it: &NamedFrame| format!("{} {}:{}", it.function, it.file, it.line);
        let functions: Vec<_> = functions.iter().map(shown).collect();
        format!("{what}: {functions:#?} {calls:?}")
    };
    let innermost = functions.iter().position(|it| it.function == "wait");
    let functions = &functions[innermost.unwrap_or_else(|| panic!("{}", show()))..];
    let name = |it: &NamedFrame| (it.function.clone(), it.file.clone());
    let names: Vec<_> = functions.iter().map(name).collect();
    let name = |it: &Call| (it.name(), it.file.clone().unwrap_or_default());
    let expected: Vec<_> = calls.iter().map(name).collect();
    assert_eq!(names, expected, "{}", show());
    // It went on in the innermost one.
    for (function, call) in functions.iter().zip(calls).skip(1) {
        assert_eq!(function.line, call.line, "{call:?}: {}", show());
        tally.frames += 1;
    }
    tally.stacks += 1;
}
