//! The names of attributes in the records of a process.

use otelctx_format::KeyMap;

use crate::ProcessContext;

/// The names that records refer to, by the variable that points to a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordKeys {
    all: KeyMap,
    own: Vec<Option<OwnKeys>>,
}

/// The names of the publisher that alone uses a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnKeys {
    /// The address of its process context.
    context: u64,
    keys: KeyMap,
}

impl RecordKeys {
    /// The same names for each variable.
    #[must_use]
    pub fn new(all: KeyMap) -> Self {
        let own = Vec::new();
        Self { all, own }
    }

    /// The names in a process with this context. `owners` has the address of the context of the publisher that alone uses
    /// a variable, for each variable for which that is known.
    pub(crate) fn by_owner(all: KeyMap, owners: &[Option<u64>], context: &ProcessContext) -> Self {
        let own = |owner: &Option<u64>| {
            let context_address = (*owner)?;
            Some(OwnKeys {
                context: context_address,
                keys: context.keys_at(context_address)?.clone(),
            })
        };
        let own = owners.iter().map(own).collect();
        Self { all, own }
    }

    /// The names on which all publishers of the process agree: see [`KeyMap::agreed`].
    #[must_use]
    pub fn all(&self) -> &KeyMap {
        &self.all
    }

    /// The names in records that the variable with this position in
    /// [`Resolution::variables`](otelctx_remote::tls::Resolution::variables) points to: those of its publisher, if
    /// it is known which one that is, or else those on which all agree.
    #[must_use]
    pub fn of_variable(&self, variable: usize) -> &KeyMap {
        let own = self.own.get(variable).and_then(Option::as_ref);
        own.map_or(&self.all, |own| &own.keys)
    }

    /// The address of the process context whose names records of a variable have, if that is known of several.
    #[must_use]
    pub fn context_of_variable(&self, variable: usize) -> Option<u64> {
        Some(self.own.get(variable)?.as_ref()?.context)
    }

    /// Returns the names after a change of the process context; `None` if it has no readable key map.
    #[must_use]
    pub fn updated(&self, context: &ProcessContext) -> Option<Self> {
        let all = context.keys.clone().ok()??;
        let owners: Vec<_> = (0..self.own.len())
            .map(|variable| self.context_of_variable(variable))
            .collect();
        Some(Self::by_owner(all, &owners, context))
    }

    /// Returns whether these are earlier names, and maybe more.
    #[must_use]
    pub fn continue_names_of(&self, earlier: &Self) -> bool {
        let continues = |new: &KeyMap, old: &KeyMap| {
            new.names().starts_with(old.names()) && new.contested() == old.contested()
        };
        let variables = self.own.len().max(earlier.own.len());
        continues(&self.all, &earlier.all)
            && (0..variables).all(|variable| {
                self.context_of_variable(variable) == earlier.context_of_variable(variable)
                    && continues(self.of_variable(variable), earlier.of_variable(variable))
            })
    }

    /// Returns the names on which these and other ones agree, for all variables.
    #[must_use]
    pub fn agreed(&self, other: &KeyMap) -> Self {
        Self::new(KeyMap::agreed([Some(&self.all), Some(other)]))
    }
}
