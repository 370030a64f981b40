//! The names of attributes in the records of a process.

use otelctx_format::KeyMap;

use crate::ProcessContext;

/// The names that records refer to, by the variable that points to a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordKeys {
    all: KeyMap,
    own: Vec<Option<OwnKeys>>,
}

/// The publisher whose records a variable points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It may be any.
    Unknown,
    /// The one with the process context at this address.
    Context(u64),
    /// One without a process context: nothing names its attributes.
    WithoutContext,
}

/// The names of the publisher that alone uses a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnKeys {
    owner: Owner,
    keys: KeyMap,
}

impl RecordKeys {
    /// The same names for each variable.
    #[must_use]
    pub fn new(all: KeyMap) -> Self {
        let own = Vec::new();
        Self { all, own }
    }

    /// The names in a process with this context. `owners` has the publisher that alone uses a variable, for each variable.
    pub(crate) fn by_owner(all: KeyMap, owners: &[Owner], context: &ProcessContext) -> Self {
        let own = |owner: &Owner| {
            let keys = match *owner {
                Owner::Unknown => return None,
                Owner::Context(address) => context.keys_at(address)?.clone(),
                Owner::WithoutContext => KeyMap::agreed([None]),
            };
            let owner = *owner;
            Some(OwnKeys { owner, keys })
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
        match self.owner_of(variable) {
            Owner::Context(address) => Some(address),
            Owner::Unknown | Owner::WithoutContext => None,
        }
    }

    /// Returns true if a variable has records of a publisher without a process context, whose attributes have no names.
    #[must_use]
    pub fn is_without_context(&self, variable: usize) -> bool {
        self.owner_of(variable) == Owner::WithoutContext
    }

    fn owner_of(&self, variable: usize) -> Owner {
        let own = self.own.get(variable).and_then(Option::as_ref);
        own.map_or(Owner::Unknown, |own| own.owner)
    }

    /// Returns the names after a change of the process context; `None` if it has no readable key map.
    #[must_use]
    pub fn updated(&self, context: &ProcessContext) -> Option<Self> {
        let all = context.keys.clone().ok()??;
        let owners: Vec<_> = (0..self.own.len())
            .map(|variable| self.owner_of(variable))
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
                self.owner_of(variable) == earlier.owner_of(variable)
                    && continues(self.of_variable(variable), earlier.of_variable(variable))
            })
    }

    /// Returns the names on which these and other ones agree, for all variables.
    #[must_use]
    pub fn agreed(&self, other: &KeyMap) -> Self {
        Self::new(KeyMap::agreed([Some(&self.all), Some(other)]))
    }
}
