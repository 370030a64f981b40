//! Which processes are recorded: by their services, and by the attributes of their resources.

use std::borrow::Cow;
use std::str::FromStr;

use otelctx_profile::sample::ProcessFacts;
use otelctx_profile::sample::format::process_context::Value;

/// The resource attribute with the name of a service.
const SERVICE_NAME: &str = "service.name";

/// An attribute of resources, and the value to select. It may end in `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::command::agent) struct ResourceRule {
    key: String,
    pattern: String,
}

impl FromStr for ResourceRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let both = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, pattern) = both.ok_or("expected NAME=VALUE, such as k8s.namespace.name=shop")?;
        Ok(Self {
            key: key.to_owned(),
            pattern: pattern.to_owned(),
        })
    }
}

/// The processes to record.
#[derive(Debug, Default)]
pub(in crate::command::agent) struct Recorded {
    pub(super) services: Vec<String>,
    pub(super) except_services: Vec<String>,
    pub(super) resources: Vec<ResourceRule>,
    pub(super) except_resources: Vec<ResourceRule>,
}

impl Recorded {
    /// Returns whether to record a process.
    pub(in crate::command::agent) fn includes(&self, facts: &ProcessFacts) -> bool {
        !facts.opted_out
            && self.includes_service(&value(facts, SERVICE_NAME))
            && self.includes_resource(|key| value(facts, key))
    }

    fn includes_service(&self, name: &str) -> bool {
        let is_one = |of: &[String]| of.iter().any(|pattern| matches(pattern, name));
        !is_one(&self.except_services) && (self.services.is_empty() || is_one(&self.services))
    }

    /// Of each attribute that is selected, one value must match.
    fn includes_resource<'f>(&self, value: impl Fn(&str) -> Cow<'f, str>) -> bool {
        let holds = |rule: &ResourceRule| matches(&rule.pattern, &value(&rule.key));
        let is_selected = |rule: &ResourceRule| {
            let mut same = self.resources.iter().filter(|it| it.key == rule.key);
            same.any(holds)
        };
        !self.except_resources.iter().any(holds) && self.resources.iter().all(is_selected)
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => text == pattern,
    }
}

/// Returns an attribute of a process's resource as a text; empty without it.
fn value<'f>(facts: &'f ProcessFacts, key: &str) -> Cow<'f, str> {
    let mut resource = facts.resource.iter();
    match resource.find(|(name, _)| name == key) {
        Some((_, Value::String(text))) => text.into(),
        Some((_, Value::Bool(value))) => value.to_string().into(),
        Some((_, Value::Int(value))) => value.to_string().into(),
        _ => {
            // What profiles have beside a resource.
            let of_group = match key {
                "container.id" => &facts.container_id,
                "k8s.pod.uid" => &facts.pod_uid,
                _ => &None,
            };
            of_group.as_deref().unwrap_or_default().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(resource: &[(&str, Value)]) -> ProcessFacts {
        ProcessFacts {
            container_id: Some("c0ffee".to_owned()),
            resource: resource
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.clone()))
                .collect(),
            ..ProcessFacts::default()
        }
    }

    fn recorded(rules: &[&str], except: &[&str]) -> Recorded {
        let parsed = |all: &[&str]| all.iter().map(|it| it.parse().unwrap()).collect();
        Recorded {
            resources: parsed(rules),
            except_resources: parsed(except),
            ..Recorded::default()
        }
    }

    #[test]
    fn services_are_included_by_name_or_by_its_start() {
        let list = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        let process = |name: &str| process(&[("service.name", Value::String(name.to_owned()))]);
        let only = Recorded {
            services: list(&["shop", "web-*"]),
            except_services: list(&["web-admin", "batch*"]),
            ..Recorded::default()
        };
        for (name, expected) in [
            ("shop", true),
            ("shop2", false),
            ("web-", true),
            ("web-cart", true),
            ("web-admin", false),
            ("batch", false),
            ("", false),
        ] {
            assert_eq!(only.includes(&process(name)), expected, "{name}");
        }
        let except = Recorded {
            except_services: list(&["batch*"]),
            ..Recorded::default()
        };
        assert!(except.includes(&process("shop")) && except.includes(&ProcessFacts::default()));
        assert!(!except.includes(&process("batch-7")));
        let opted_out = ProcessFacts {
            opted_out: true,
            ..process("shop")
        };
        assert!(!Recorded::default().includes(&opted_out));
    }

    #[test]
    fn resources_are_selected_by_their_attributes() {
        let shop = process(&[
            ("k8s.namespace.name", Value::String("shop-eu".to_owned())),
            ("replica", Value::Int(3)),
            ("debug", Value::Bool(true)),
        ]);
        let none: &[&str] = &[];
        for (rules, except, expected) in [
            (none, none, true),
            (&["k8s.namespace.name=shop-*"], &[], true),
            (&["k8s.namespace.name=shop"], &[], false),
            // One of the values of an attribute, and all attributes.
            (
                &["k8s.namespace.name=a", "k8s.namespace.name=shop-eu"],
                &[],
                true,
            ),
            (&["k8s.namespace.name=shop-eu", "replica=4"], &[], false),
            (&["k8s.namespace.name=shop-eu", "replica=3"], &[], true),
            (&["debug=true"], &[], true),
            (&["absent=x"], &[], false),
            (&["absent="], &[], true),
            (&["container.id=c0*"], &[], true),
            (&[], &["k8s.namespace.name=shop-*"], false),
            (&["replica=3"], &["debug=true"], false),
            (&[], &["absent=*x"], true),
        ] {
            let recorded = recorded(rules, except);
            assert_eq!(recorded.includes(&shop), expected, "{rules:?} {except:?}");
        }
        for text in ["", "x", "=x"] {
            assert!(text.parse::<ResourceRule>().is_err(), "{text}");
        }
    }
}
