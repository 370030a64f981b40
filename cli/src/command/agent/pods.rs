//! What the node knows of processes: the names of pods and containers, the node and the host.
//!
//! The kubelet keeps a link to the log of each container, whose name has the names of the pod, the namespace and the
//! container, and the container's ID: `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`. So no API server is asked.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use otelctx_profile::Recording;
use otelctx_profile::sample::ProcessFacts;
use otelctx_profile::sample::format::process_context::Value;

/// Maximum number of links that are read: a node has some hundred containers.
const MAX_LINKS: usize = 10_000;
/// Length of a container's ID, in hexadecimal digits.
const CONTAINER_ID: usize = 64;

/// The names of a container in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Names {
    pod: String,
    namespace: String,
    container: String,
}

/// Adds attributes to the resources of processes.
#[derive(Debug, Default)]
pub(super) struct Pods {
    directory: PathBuf,
    /// By the container's ID.
    known: HashMap<String, Names>,
    /// Attributes of every process: of the host and the node.
    common: Vec<(&'static str, String)>,
}

impl Pods {
    /// Reads links in this directory when they are needed.
    pub(super) fn new(directory: &Path, node: Option<&str>, host: Option<String>) -> Self {
        let host = host.map(|it| ("host.name", it));
        let node = node.map(|it| ("k8s.node.name", it.to_owned()));
        Self {
            directory: directory.to_owned(),
            known: HashMap::new(),
            common: host.into_iter().chain(node).collect(),
        }
    }

    /// Adds what is known to the resource of each process. What a process publishes itself takes precedence.
    pub(super) fn apply(&mut self, batch: &mut Recording) {
        let ids: Vec<_> = batch.catalog.processes().map(|(id, _)| id).collect();
        let mut is_read = false;
        for id in ids {
            let facts = batch.catalog.process_mut(id);
            if let Some(container) = facts.container_id.clone() {
                if !is_read && !self.known.contains_key(&container) {
                    // It has started since, or is none of Kubernetes.
                    self.known = read(&self.directory);
                    is_read = true;
                }
                if let Some(names) = self.known.get(&container) {
                    add(facts, "k8s.pod.name", &names.pod);
                    add(facts, "k8s.namespace.name", &names.namespace);
                    add(facts, "k8s.container.name", &names.container);
                }
            }
            for (key, value) in &self.common {
                add(facts, key, value);
            }
        }
    }
}

fn add(facts: &mut ProcessFacts, key: &str, value: &str) {
    if facts.resource.iter().all(|(name, _)| name != key) {
        let value = Value::String(value.to_owned());
        facts.resource.push((key.to_owned(), value));
    }
}

fn read(directory: &Path) -> HashMap<String, Names> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let names = entries.take(MAX_LINKS).filter_map(|entry| {
        let name = entry.ok()?.file_name();
        parse(name.to_str()?)
    });
    names.collect()
}

/// Parses the name of a link. Names in Kubernetes contain no underscore.
fn parse(name: &str) -> Option<(String, Names)> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut names = names.split('_').map(str::to_owned);
    let (pod, namespace, container) = (names.next()?, names.next()?, names.next()?);
    let is_id = id.len() == CONTAINER_ID && id.bytes().all(|it| it.is_ascii_hexdigit());
    let is_whole = names.next().is_none() && !pod.is_empty() && !namespace.is_empty();
    (is_id && is_whole && !container.is_empty()).then(|| {
        let names = Names {
            pod,
            namespace,
            container,
        };
        (id.to_owned(), names)
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::os::unix::fs::symlink;

    use otelctx_profile::Clock;
    use otelctx_profile::sample::{Catalog, Counts};

    use super::*;

    #[test]
    fn names_are_those_of_the_link_to_the_log() {
        let id = "0123456789abcdef".repeat(4);
        let (found, names) = parse(&format!("shop-7d9f-x2x_default_web-app-{id}.log")).unwrap();
        assert_eq!(found, id);
        assert_eq!(
            [&names.pod[..], &names.namespace, &names.container],
            ["shop-7d9f-x2x", "default", "web-app"]
        );
        for name in [
            format!("a_b_c-{id}"),
            format!("a_b-{id}.log"),
            format!("a_b_c_d-{id}.log"),
            format!("_b_c-{id}.log"),
            format!("a__c-{id}.log"),
            format!("a_b_-{id}.log"),
            format!("a_b_c-{}.log", &id[1..]),
            format!("a_b_c-{}x.log", &id[1..]),
            ".log".to_owned(),
        ] {
            assert_eq!(parse(&name), None, "{name}");
        }
    }

    #[test]
    fn processes_get_the_names_of_their_pods_also_of_later_ones() {
        let directory = std::env::temp_dir().join(format!("otelctx-pods-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let ids = ["a".repeat(64), "b".repeat(64)];
        let link = |pod: &str, id: &str| {
            let name = format!("{pod}_default_web-{id}.log");
            symlink("/var/log/pods/absent", directory.join(name)).unwrap();
        };
        let mut pods = Pods::new(&directory, Some("node-7"), Some("host-7".to_owned()));
        let mut described = || {
            let mut catalog = Catalog::new();
            for id in [Some(&ids[0]), Some(&ids[1]), None] {
                catalog.add_process(ProcessFacts {
                    container_id: id.cloned(),
                    resource: vec![("host.name".to_owned(), Value::String("own".to_owned()))],
                    ..ProcessFacts::default()
                });
            }
            let mut batch = Recording {
                catalog,
                samples: Vec::new(),
                clock: Clock {
                    start: 0,
                    end: 1,
                    start_unix: 0,
                },
                period: NonZeroU64::MIN,
                counts: Counts::default(),
            };
            pods.apply(&mut batch);
            let processes = batch.catalog.processes();
            let texts = processes.map(|(_, facts)| {
                let resource = facts.resource.iter();
                let texts = resource.map(|(key, value)| match value {
                    Value::String(value) => format!("{key}={value}"),
                    value => panic!("{value:?}"),
                });
                texts.collect::<Vec<_>>().join(" ")
            });
            texts.collect::<Vec<_>>()
        };
        let alone = "host.name=own k8s.node.name=node-7";
        let of_pod = |pod: &str| {
            format!(
                "host.name=own k8s.pod.name={pod} k8s.namespace.name=default \
                 k8s.container.name=web k8s.node.name=node-7"
            )
        };
        link("shop", &ids[0]);
        assert_eq!(described(), [&of_pod("shop"), alone, alone]);
        link("cart", &ids[1]);
        assert_eq!(described(), [&of_pod("shop"), &of_pod("cart"), alone]);
        fs::remove_dir_all(directory).unwrap();
    }
}
