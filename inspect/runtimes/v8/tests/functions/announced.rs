//! The functions that V8 announces to perf(1) with `--perf-basic-prof`.

use otelctx_reader::sample::NamedFrame;

/// Code, and the function whose code it is.
#[derive(Debug)]
struct Entry {
    start: u64,
    end: u64,
    function: Option<Function>,
}

/// A function of JavaScript.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    name: String,
    file: String,
    line: u32,
}

pub(crate) struct Names(Vec<Entry>);

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Stacks that reached their start.
    pub(crate) whole: usize,
    pub(crate) compared: usize,
    pub(crate) unnamed: usize,
    /// Functions that have called no other.
    pub(crate) innermost: usize,
    /// Unnamed functions that have called another.
    pub(crate) unnamed_callers: usize,
    pub(crate) wrong: usize,
}

impl Names {
    /// Reads what a process has announced until now.
    pub(crate) fn read(pid: i32) -> Self {
        let text = std::fs::read(format!("/tmp/perf-{pid}.map")).unwrap();
        let text = String::from_utf8_lossy(&text);
        let entry = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let mut number = || u64::from_str_radix(words.next()?, 16).ok();
            let (start, size) = (number()?, number()?);
            Some(Entry {
                start,
                end: start + size,
                function: Function::parse(words.next()?),
            })
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// The function whose code was announced last at an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Function> {
        let mut entries = self.0.iter().rev();
        let last = entries.find(|it| (it.start..it.end).contains(&address))?;
        last.function.as_ref()
    }
}

impl Function {
    /// Parses `JS:*name file:line:column`.
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("JS:")?;
        let text = text.strip_prefix('o').unwrap_or(text);
        let text = text.trim_start_matches(['*', '+', '^', '~', '\'']);
        let (name, place) = text.rsplit_once(' ')?;
        let mut place = place.rsplitn(3, ':');
        let (_, line, file) = (place.next()?, place.next()?, place.next()?);
        Some(Self {
            name: name.into(),
            file: file.into(),
            line: line.parse().ok()?,
        })
    }

    /// The name, as its frames have it.
    fn shown(&self) -> String {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        match &*self.name {
            "" if file.is_empty() => "(anonymous)".into(),
            "" => format!("(anonymous {file}:{})", self.line),
            name => name.into(),
        }
    }
}

impl Tally {
    /// Counts a function. Returns `true` if it has a name.
    pub(crate) fn compare(
        &mut self,
        what: &str,
        expected: &Function,
        found: Option<&NamedFrame>,
    ) -> bool {
        self.compared += 1;
        match found {
            Some(found) if !found.is_unnamed() => {
                // V8 announces the code of a class's fields by the class's name.
                let is_of_fields = found.function == "<instance_members_initializer>";
                let is_name = found.function == expected.shown() || is_of_fields;
                let same = is_name && found.file == expected.file;
                if !same {
                    println!("{what}: {expected:?}, found {found:?}");
                    self.wrong += 1;
                }
                true
            }
            _ => {
                self.unnamed += 1;
                false
            }
        }
    }
}
