//! Bounds the attributes of samples.
//!
//! Backends keep an index of attributes: a program that publishes a new value with each request, such as a path with an ID,
//! would fill it.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use otelctx_profile::Recording;
use otelctx_profile::sample::format::record::DecodedContext;

/// The value that stands for all further values of an attribute.
pub const OTHER: &str = "(other)";

/// The attribute with the route of a request, which has a limit of its own.
const ROUTE: &str = "http.route";

/// Limits of the attributes of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardinalityLimits {
    /// Maximum number of attributes with different names. Default: 64.
    pub attributes: usize,
    /// Maximum number of values of an attribute. Default: 1,000.
    pub values: usize,
    /// Maximum number of routes: values of `http.route`. Default: 500.
    pub routes: usize,
    /// The time for which a value that does not come again takes a place, in nanoseconds: up to twice as long. Default: an
    /// hour.
    pub period: u64,
}

impl Default for CardinalityLimits {
    fn default() -> Self {
        Self {
            attributes: 64,
            values: 1_000,
            routes: 500,
            period: 3_600_000_000_000,
        }
    }
}

/// What was replaced in a part of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// Number of values of samples that became [`OTHER`].
    pub values: u64,
    /// Number of attributes of samples that were removed, because there are too many names.
    pub attributes: u64,
}

/// Bounds the names and values of attributes over time. The first ones stay as they are.
#[derive(Debug, Default)]
pub struct Cardinality {
    limits: CardinalityLimits,
    /// Values of the current period, and of the one before, by name.
    young: Names,
    old: Names,
    /// The start of the current period.
    start: Option<u64>,
    hasher: RandomState,
}

/// The hashes of values, by name. Two values with one hash count as one, which does no harm.
type Names = HashMap<String, HashSet<u64, RandomState>, RandomState>;

impl Cardinality {
    /// Creates one that has seen nothing.
    #[must_use]
    pub fn new(limits: CardinalityLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Replaces values, and removes attributes, that exceed a limit.
    pub fn apply(&mut self, part: &mut Recording) -> Limited {
        self.begin(part.clock.end);
        let mut all = Limited::default();
        let limit = |context: &mut DecodedContext| {
            let mut limited = Limited::default();
            context.attributes.retain_mut(|(name, value)| {
                let place = self.place(name, value);
                match place {
                    Place::Known => {}
                    Place::OtherValue => {
                        value.clear();
                        value.push_str(OTHER);
                        limited.values += 1;
                    }
                    Place::OtherName => limited.attributes += 1,
                }
                place != Place::OtherName
            });
            limited
        };
        part.change_contexts(limit, |limited| {
            all.values += limited.values;
            all.attributes += limited.attributes;
        });
        all
    }

    /// Begins another period, if it is time.
    fn begin(&mut self, now: u64) {
        let start = *self.start.get_or_insert(now);
        if now.saturating_sub(start) >= self.limits.period {
            self.start = Some(now);
            self.old = std::mem::take(&mut self.young);
        }
    }

    fn place(&mut self, name: &str, value: &str) -> Place {
        let limits = self.limits;
        if !self.young.contains_key(name) {
            let was_known = self.old.contains_key(name);
            if self.young.len() >= room(limits.attributes, was_known) {
                return Place::OtherName;
            }
            self.young.insert(name.to_owned(), HashSet::default());
        }
        let hash = self.hasher.hash_one(value);
        let of_old = self.old.get(name);
        let was_known = of_old.is_some_and(|values| values.contains(&hash));
        let Some(values) = self.young.get_mut(name) else {
            return Place::OtherName;
        };
        let limit = if name == ROUTE {
            limits.routes
        } else {
            limits.values
        };
        if values.contains(&hash) {
            return Place::Known;
        }
        if values.len() >= room(limit, was_known) {
            return Place::OtherValue;
        }
        values.insert(hash);
        Place::Known
    }
}

/// Returns the number of places for what was known in the period before, or was not. What comes again keeps its place, as far
/// as memory is bounded.
fn room(limit: usize, was_known: bool) -> usize {
    if was_known {
        limit.saturating_mul(2)
    } else {
        limit
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Known,
    OtherValue,
    OtherName,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use otelctx_profile::Clock;
    use otelctx_profile::sample::format::record::DecodedContext;
    use otelctx_profile::sample::{Catalog, Counts, Event, Found, ProcessFacts, Sample};

    use super::*;

    /// A recording with a sample for each of these lists of attributes.
    fn recording(end: u64, contexts: &[&[(&str, &str)]]) -> Recording {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let thread = catalog.thread(process, 7, "worker");
        let stack = catalog.native_stack(&[]);
        let samples = contexts.iter().map(|attributes| {
            let mut context = DecodedContext::default();
            let text = |it: &str| it.to_owned();
            let attributes = attributes.iter();
            context.attributes = attributes.map(|(k, v)| (text(k), text(v))).collect();
            Sample {
                time: end,
                cpu: 0,
                thread,
                event: Event::OnCpu,
                found: Found::Attached(catalog.context(&context)),
                gil: None,
                user_stack: stack,
                stack_end: None,
                kernel_stack: stack,
            }
        });
        let samples = samples.collect();
        Recording {
            catalog,
            samples,
            clock: Clock {
                start: 0,
                end,
                start_unix: 0,
            },
            period: NonZeroU64::MIN,
            counts: Counts::default(),
        }
    }

    /// The attributes of each sample.
    fn attributes(recording: &Recording) -> Vec<Vec<(&str, &str)>> {
        let of = |sample: &Sample| {
            let id = sample.found.attached().unwrap();
            let all = recording.catalog.context_facts(*id).attributes.iter();
            all.map(|(name, value)| (&name[..], &value[..])).collect()
        };
        recording.samples.iter().map(of).collect()
    }

    #[test]
    fn further_values_and_names_are_replaced_and_counted_by_sample() {
        let mut cardinality = Cardinality::new(CardinalityLimits {
            attributes: 2,
            values: 2,
            routes: 1,
            period: 100,
        });
        let mut first = recording(
            10,
            &[
                &[("a", "1"), (ROUTE, "/cart")],
                &[("a", "2"), (ROUTE, "/pay")],
                &[("a", "3"), ("b", "1")],
                &[("a", "3"), ("b", "2")],
                &[("a", "1")],
            ],
        );
        let limited = cardinality.apply(&mut first);
        let expected: [&[(&str, &str)]; 5] = [
            &[("a", "1"), (ROUTE, "/cart")],
            &[("a", "2"), (ROUTE, OTHER)],
            &[("a", OTHER)],
            &[("a", OTHER)],
            &[("a", "1")],
        ];
        assert_eq!(attributes(&first), expected);
        let (values, attributes_of) = (3, 2);
        assert_eq!(
            (limited.values, limited.attributes),
            (values, attributes_of)
        );
        // What has become equal is one context.
        let ids = [2, 3].map(|at: usize| *first.samples[at].found.attached().unwrap());
        assert_eq!(ids[0], ids[1]);
    }

    #[test]
    fn values_that_do_not_come_again_make_room_for_others() {
        let mut cardinality = Cardinality::new(CardinalityLimits {
            values: 1,
            period: 100,
            ..CardinalityLimits::default()
        });
        let mut value = |end, value| {
            let mut part = recording(end, &[&[("a", value)]]);
            cardinality.apply(&mut part);
            attributes(&part)[0][0].1 != OTHER
        };
        assert!(value(0, "1"));
        assert!(!value(99, "2"));
        // Another period: "1" keeps its place if it comes, but does not take that of "2".
        assert!(value(100, "2"));
        assert!(value(150, "1"));
        assert!(!value(150, "3"));
        assert!(value(200, "1") && value(250, "2"));
        // Neither came in a whole period.
        assert!(value(300, "1"));
        assert!(value(400, "3"));
        assert!(!value(450, "2"));
    }

    #[test]
    fn memory_is_bounded_whatever_is_published() {
        let mut cardinality = Cardinality::new(CardinalityLimits::default());
        let limits = cardinality.limits;
        for number in 0..20_000_u64 {
            let name = format!("name {}", number % 1000);
            let value = format!("value {number}");
            let context: &[(&str, &str)] = &[(&name, &value), (ROUTE, &value)];
            cardinality.apply(&mut recording(number * 1_000_000_000, &[context]));
            for names in [&cardinality.young, &cardinality.old] {
                assert!(names.len() <= 2 * limits.attributes);
                assert!(names.values().all(|it| it.len() <= 2 * limits.values));
            }
        }
    }
}
