//! The agent's settings: from flags, else from the environment, else from a file, else the defaults.

mod file;
mod recorded;
mod values;

use std::env;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use otelctx_agent::{CardinalityLimits, Queue, QueueLimits};
use otelctx_export::{Endpoint, Protocol};
use otelctx_profile::sample::ModuleFiles;
use otelctx_symbolize::{SharedServer, Symbols};
use serde::Deserialize;

use super::parquet::ParquetFiles;
use super::pods::Pods;
use crate::command::attribute_filter::AttributeFilter;
use crate::command::debug_files::DebugFiles;
use crate::command::help;
use crate::command::ids;
use crate::command::record::output::host;
use crate::command::wall::Wall;
use crate::error::Error;
use crate::output::terminal::escape;
pub(super) use recorded::Recorded;
use recorded::ResourceRule;
pub(super) use values::ListenAddress;
use values::{CpuPart, Frequency, Interval, Size};

/// The default time between two messages.
const INTERVAL: Duration = Duration::from_secs(5);
/// The default time for sending what is in the queue after a signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// The default time of the samples in a Parquet file.
const PARQUET_INTERVAL: Duration = Duration::from_secs(300);
/// The default sampling frequency per CPU, in Hz.
const FREQUENCY: u32 = 99;
/// The default part of a CPU that the agent may take.
const CPU_BUDGET: f64 = 0.015;
/// The part of it that is for resolving functions, as a divisor; and the part of a CPU without a budget.
const RESOLVE_DIVISOR: f64 = 3.0;
const RESOLVE_WITHOUT_BUDGET: f64 = 0.02;
/// Memory of a child process that decodes a file, in bytes: it counts with the agent's where a service or a container has a limit.
const DECODER_MEMORY: u64 = 1 << 30;

/// Where the kubelet keeps links to the logs of containers.
const POD_LOGS: &str = "/var/log/containers";

/// Environment variables that name the collector, the first one with precedence.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// Record the whole machine without end, and send profiles to an OpenTelemetry Collector
///
/// Sends every 5 s, and retries while the collector is away: profiles wait in a queue that is bounded
/// in memory, and on disk with --queue-dir. Ends on SIGTERM and Ctrl-C. OTEL_EXPORTER_OTLP_* hold for
/// headers, timeout, compression and certificates.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// File with settings (TOML): the names of the options below without dashes before them. Flags and
    /// environment variables take precedence
    #[arg(long, value_name = "FILE", env = "OTELCTX_AGENT_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Ask the agent that listens on --listen for its health, and exit: 0 if it is well, else 1
    #[arg(long, conflicts_with = "check_config")]
    pub(super) health: bool,
    /// Check the settings, print them, and exit
    #[arg(long)]
    pub(super) check_config: bool,
    #[command(flatten)]
    given: Given,
}

const EXAMPLES: &str = "\
Examples:
  otelctx agent --otlp http://localhost:4317                  send to a collector over gRPC
  otelctx agent --config agent.toml --check-config            check a file with settings
  otelctx agent --queue-dir /var/lib/otelctx --queue-size 1GiB
                                                              keep profiles while the collector is away";

/// The settings that can be given in each way.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Given {
    /// Send to this collector, such as http://localhost:4317 [default: OTEL_EXPORTER_OTLP_ENDPOINT, else
    /// http://localhost:4318]
    #[arg(help_heading = help::OUTPUT, long, value_name = "URL")]
    otlp: Option<String>,
    /// Protocol: grpc or http/protobuf [default: by port (4317, 4318), else OTEL_EXPORTER_OTLP_PROTOCOL,
    /// else http/protobuf]
    #[arg(help_heading = help::OUTPUT, long, value_name = "PROTOCOL")]
    #[serde(deserialize_with = "file::optional")]
    otlp_protocol: Option<Protocol>,
    /// Time between two messages, such as 10s [default: 5s]
    #[arg(help_heading = help::OUTPUT, long, value_name = "SECONDS", env = "OTELCTX_AGENT_INTERVAL")]
    interval: Option<Interval>,
    /// Keep messages that are not sent yet in this directory, also across restarts
    #[arg(help_heading = help::OUTPUT, long, value_name = "DIRECTORY", env = "OTELCTX_AGENT_QUEUE_DIR")]
    queue_dir: Option<PathBuf>,
    /// Maximum size of messages in --queue-dir, such as 1GiB [default: 256MiB]
    #[arg(help_heading = help::OUTPUT, long, value_name = "SIZE", env = "OTELCTX_AGENT_QUEUE_SIZE")]
    queue_size: Option<Size>,
    /// Maximum size of messages in memory [default: 16MiB]
    #[arg(help_heading = help::OUTPUT, long, value_name = "SIZE", env = "OTELCTX_AGENT_QUEUE_MEMORY")]
    queue_memory: Option<Size>,
    /// Time at the end for sending what waits: the rest stays in --queue-dir, or is dropped [default: 3s]
    #[arg(help_heading = help::OUTPUT, long, value_name = "SECONDS", env = "OTELCTX_AGENT_STOP_TIMEOUT")]
    stop_timeout: Option<Interval>,
    /// Also write Parquet files to this folder, one for each hour and service
    #[arg(help_heading = help::OUTPUT, long, value_name = "FOLDER", env = "OTELCTX_AGENT_PARQUET")]
    parquet: Option<PathBuf>,
    /// Time of the samples in a Parquet file, from 0.1s to 5m [default: 5m]
    #[arg(help_heading = help::OUTPUT, long, value_name = "SECONDS", env = "OTELCTX_AGENT_PARQUET_INTERVAL")]
    parquet_interval: Option<Interval>,
    /// Prefix for context attribute names
    #[arg(help_heading = help::OUTPUT, long, value_name = "PREFIX", env = "OTELCTX_AGENT_ATTRIBUTE_PREFIX")]
    attribute_prefix: Option<String>,
    /// Serve metrics for Prometheus (/metrics) and the agent's health (/health) on this port of the
    /// loopback interface, or on ADDRESS:PORT [default: nowhere]
    #[arg(help_heading = help::OUTPUT, long, value_name = "PORT", env = "OTELCTX_AGENT_LISTEN")]
    #[serde(deserialize_with = "file::optional")]
    listen: Option<ListenAddress>,
    /// Name of the Kubernetes node (k8s.node.name), for example from the Downward API
    #[arg(help_heading = help::PROCESSES, long, value_name = "NAME", env = "OTELCTX_AGENT_NODE_NAME")]
    node_name: Option<String>,
    /// Directory with links to the logs of Kubernetes containers, from which the names of pods are taken
    /// [default: /var/log/containers]
    #[arg(help_heading = help::PROCESSES, long, value_name = "DIRECTORY", env = "OTELCTX_AGENT_POD_LOGS")]
    pod_logs: Option<PathBuf>,
    /// Sampling frequency per CPU, in Hz [default: 99]
    #[arg(help_heading = help::SAMPLING, short = 'F', long, value_name = "HZ", env = "OTELCTX_AGENT_FREQUENCY")]
    frequency: Option<Frequency>,
    /// CPU time that the agent may take, as a part of one CPU: at a lower frequency if it needs more. none: any
    /// [default: 1.5%]
    #[arg(help_heading = help::SAMPLING, long, value_name = "PERCENT", env = "OTELCTX_AGENT_CPU_BUDGET")]
    cpu_budget: Option<CpuPart>,
    /// Also sample where threads wait, this often in a second at most
    #[arg(help_heading = help::SAMPLING, long, value_name = "HZ", num_args = 0..=1, require_equals = true,
        default_missing_value = "49", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    #[serde(deserialize_with = "file::wall")]
    wall: Option<u32>,
    /// Sample by stopping threads, even if eBPF is permitted
    #[arg(help_heading = help::SAMPLING, long)]
    ptrace: bool,
    /// Record only processes of this service (service.name); a name may end in *. Can be repeated
    #[arg(help_heading = help::PROCESSES, long, value_name = "NAME")]
    service: Vec<String>,
    /// Do not record processes of this service; a name may end in *. Can be repeated
    #[arg(help_heading = help::PROCESSES, long, value_name = "NAME")]
    except_service: Vec<String>,
    /// Record only processes whose resource has this attribute; a value may end in *. Can be repeated: one
    /// of the values of an attribute, and all attributes
    #[arg(help_heading = help::PROCESSES, long, value_name = "NAME=VALUE")]
    resource: Vec<ResourceRule>,
    /// Do not record processes whose resource has this attribute; a value may end in *. Can be repeated
    #[arg(help_heading = help::PROCESSES, long, value_name = "NAME=VALUE")]
    except_resource: Vec<ResourceRule>,
    /// Keep only attributes with this name, of contexts and resources; can be repeated
    #[arg(help_heading = help::SAMPLES, long, value_name = "NAME", value_parser = ids::attribute)]
    keep_attribute: Vec<String>,
    /// Leave out the attribute with this name, of contexts and resources; can be repeated
    #[arg(help_heading = help::SAMPLES, long, value_name = "NAME", value_parser = ids::attribute)]
    drop_attribute: Vec<String>,
    /// Maximum number of attributes of contexts with different names; further ones are left out [default: 64]
    #[arg(help_heading = help::SAMPLES, long, value_name = "N", env = "OTELCTX_AGENT_MAX_ATTRIBUTES")]
    #[serde(deserialize_with = "file::optional")]
    max_attributes: Option<usize>,
    /// Maximum number of values of an attribute in an hour; further ones become (other) [default: 1000]
    #[arg(help_heading = help::SAMPLES, long, value_name = "N", env = "OTELCTX_AGENT_MAX_VALUES")]
    #[serde(deserialize_with = "file::optional")]
    max_values: Option<usize>,
    /// Maximum number of routes (http.route) in an hour; further ones become (other) [default: 500]
    #[arg(help_heading = help::SAMPLES, long, value_name = "N", env = "OTELCTX_AGENT_MAX_ROUTES")]
    #[serde(deserialize_with = "file::optional")]
    max_routes: Option<usize>,
    /// Additional directory to search for separate debug files
    #[arg(help_heading = help::NAMES, long, value_name = "DIRECTORY")]
    debug_dir: Vec<PathBuf>,
    /// Download missing debug information from this debuginfod server
    #[arg(help_heading = help::NAMES, long, value_name = "URL", env = "OTELCTX_AGENT_DEBUGINFOD")]
    debuginfod: Option<String>,
    /// Send addresses with build IDs, without function names
    #[arg(help_heading = help::NAMES, long)]
    no_symbols: bool,
}

impl Given {
    /// Completes these settings by those of a file.
    fn or(self, file: Self) -> Self {
        fn list<T>(given: Vec<T>, file: Vec<T>) -> Vec<T> {
            if given.is_empty() { file } else { given }
        }
        Self {
            otlp: self.otlp.or(file.otlp),
            otlp_protocol: self.otlp_protocol.or(file.otlp_protocol),
            interval: self.interval.or(file.interval),
            queue_dir: self.queue_dir.or(file.queue_dir),
            queue_size: self.queue_size.or(file.queue_size),
            queue_memory: self.queue_memory.or(file.queue_memory),
            stop_timeout: self.stop_timeout.or(file.stop_timeout),
            parquet: self.parquet.or(file.parquet),
            parquet_interval: self.parquet_interval.or(file.parquet_interval),
            attribute_prefix: self.attribute_prefix.or(file.attribute_prefix),
            listen: self.listen.or(file.listen),
            node_name: self.node_name.or(file.node_name),
            pod_logs: self.pod_logs.or(file.pod_logs),
            frequency: self.frequency.or(file.frequency),
            cpu_budget: self.cpu_budget.or(file.cpu_budget),
            wall: self.wall.or(file.wall),
            ptrace: self.ptrace || file.ptrace,
            service: list(self.service, file.service),
            except_service: list(self.except_service, file.except_service),
            resource: list(self.resource, file.resource),
            except_resource: list(self.except_resource, file.except_resource),
            keep_attribute: list(self.keep_attribute, file.keep_attribute),
            drop_attribute: list(self.drop_attribute, file.drop_attribute),
            max_attributes: self.max_attributes.or(file.max_attributes),
            max_values: self.max_values.or(file.max_values),
            max_routes: self.max_routes.or(file.max_routes),
            debug_dir: list(self.debug_dir, file.debug_dir),
            debuginfod: self.debuginfod.or(file.debuginfod),
            no_symbols: self.no_symbols || file.no_symbols,
        }
    }
}

/// The settings in force.
#[derive(Debug)]
pub(super) struct Settings {
    otlp: Option<String>,
    otlp_protocol: Option<Protocol>,
    pub(super) interval: Duration,
    queue_dir: Option<PathBuf>,
    queue_limits: QueueLimits,
    pub(super) stop_timeout: Duration,
    parquet: Option<PathBuf>,
    parquet_interval: Duration,
    pub(super) attribute_prefix: String,
    pub(super) listen: Option<ListenAddress>,
    node_name: Option<String>,
    pod_logs: PathBuf,
    pub(super) frequency: u32,
    /// The part of a CPU that the agent may take; `None` for any.
    pub(super) cpu_budget: Option<f64>,
    pub(super) wall: Wall,
    pub(super) ptrace: bool,
    pub(super) recorded: Recorded,
    pub(super) attributes: AttributeFilter,
    pub(super) cardinality: CardinalityLimits,
    debug_files: DebugFiles,
    no_symbols: bool,
}

impl Settings {
    /// Reads the settings from the file, if there is one, and completes them.
    pub(super) fn read(arguments: &Arguments) -> Result<Self, Error> {
        let file = arguments.config.as_deref().map(file::read).transpose()?;
        let mut given = arguments.given.clone();
        // The usual variables take precedence over the file, like all of the environment.
        let from_environment = ENDPOINTS
            .iter()
            .any(|it| env::var_os(it).is_some_and(|it| !it.is_empty()));
        let mut file = file.unwrap_or_default();
        if from_environment && given.otlp.is_none() {
            file.otlp = None;
            file.otlp_protocol = None;
        }
        given = given.or(file);
        let (queue, cardinality) = (QueueLimits::default(), CardinalityLimits::default());
        let settings = Self {
            otlp: given.otlp,
            otlp_protocol: given.otlp_protocol,
            interval: given.interval.map_or(INTERVAL, |it| it.0),
            queue_dir: given.queue_dir,
            queue_limits: QueueLimits {
                memory: given.queue_memory.map_or(queue.memory, |it| it.0),
                directory: given.queue_size.map_or(queue.directory, |it| it.0),
            },
            stop_timeout: given.stop_timeout.map_or(STOP_TIMEOUT, |it| it.0),
            parquet: given.parquet,
            parquet_interval: given.parquet_interval.map_or(PARQUET_INTERVAL, |it| it.0),
            attribute_prefix: given.attribute_prefix.unwrap_or_default(),
            listen: given.listen,
            node_name: given.node_name,
            pod_logs: given.pod_logs.unwrap_or_else(|| POD_LOGS.into()),
            frequency: given.frequency.map_or(FREQUENCY, |it| it.0),
            cpu_budget: given.cpu_budget.map_or(Some(CPU_BUDGET), |it| it.0),
            wall: Wall::of_agent(given.wall),
            ptrace: given.ptrace,
            recorded: Recorded {
                services: given.service,
                except_services: given.except_service,
                resources: given.resource,
                except_resources: given.except_resource,
            },
            attributes: AttributeFilter {
                keep: given.keep_attribute,
                drop: given.drop_attribute,
            },
            cardinality: CardinalityLimits {
                attributes: given.max_attributes.unwrap_or(cardinality.attributes),
                values: given.max_values.unwrap_or(cardinality.values),
                routes: given.max_routes.unwrap_or(cardinality.routes),
                ..cardinality
            },
            debug_files: DebugFiles {
                debug_dir: given.debug_dir,
                debuginfod: given.debuginfod,
            },
            no_symbols: given.no_symbols,
        };
        // Mistakes are found now, and not after an hour.
        settings.endpoint()?;
        settings.debug_files.server()?;
        Ok(settings)
    }

    /// Returns the collector.
    pub(super) fn endpoint(&self) -> Result<Endpoint, Error> {
        let variable = |name: &str| env::var(name).ok();
        let url = self.otlp.as_deref();
        Ok(Endpoint::from_environment(
            url,
            self.otlp_protocol,
            variable,
        )?)
    }

    /// Opens the queue.
    pub(super) fn queue(&self) -> Result<Queue, Error> {
        match &self.queue_dir {
            Some(path) => Ok(Queue::in_directory(path, self.queue_limits)?),
            None => Ok(Queue::in_memory(self.queue_limits)),
        }
    }

    /// Opens the folder for Parquet files, if there is one.
    pub(super) fn parquet(&self) -> Result<Option<ParquetFiles>, Error> {
        let Some(path) = &self.parquet else {
            return Ok(None);
        };
        let host = self.node_name.clone().or_else(host).unwrap_or_default();
        let files = ParquetFiles::open(path, &host, self.parquet_interval);
        files.map(Some).map_err(|why| Error::Settings {
            place: path.display().to_string(),
            why: why.to_string(),
        })
    }

    /// Returns what the node knows of processes.
    pub(super) fn pods(&self) -> Pods {
        // In a container, the system's name is that of the pod.
        let host = self.node_name.clone().or_else(host);
        Pods::new(&self.pod_logs, self.node_name.as_deref(), host)
    }

    /// Returns the names of settings that differ in `other`, and that hold from the start of the agent until its end.
    pub(super) fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        let differ = [
            ("frequency", self.frequency != other.frequency),
            ("wall", self.wall.frequency() != other.wall.frequency()),
            ("ptrace", self.ptrace != other.ptrace),
            ("queue-dir", self.queue_dir != other.queue_dir),
            (
                "parquet or parquet-interval",
                (&self.parquet, self.parquet_interval) != (&other.parquet, other.parquet_interval),
            ),
            (
                "queue-size or queue-memory",
                self.queue_limits != other.queue_limits,
            ),
            ("listen", self.listen != other.listen),
        ];
        let differ = differ.into_iter().filter(|(_, differs)| *differs);
        differ.map(|(name, _)| name).collect()
    }

    /// Returns the part of a CPU that resolving functions may take.
    pub(super) fn resolve_budget(&self) -> f64 {
        let part = self.cpu_budget.map(|it| it / RESOLVE_DIVISOR);
        part.unwrap_or(RESOLVE_WITHOUT_BUDGET)
    }

    /// Returns whether functions have the same names with other settings, apart from what a server has.
    pub(super) fn has_same_symbols(&self, other: &Self) -> bool {
        self.no_symbols == other.no_symbols
            && self.debug_files.debug_dir == other.debug_files.debug_dir
    }

    /// Returns whether debug information is downloaded from the same server.
    pub(super) fn has_same_server(&self, other: &Self) -> bool {
        self.debug_files.debuginfod == other.debug_files.debuginfod
    }

    /// Returns the server for debug information, if there is one.
    pub(super) fn server(&self) -> Option<SharedServer> {
        // It was checked when the settings were read.
        self.debug_files.server().ok().flatten()
    }

    /// Returns a symbolizer for these files of sampled code. Once `is_ending` is true, it resolves nothing more.
    pub(super) fn symbols(
        &self,
        server: Option<SharedServer>,
        files: &ModuleFiles,
        is_ending: &Arc<AtomicBool>,
    ) -> Symbols {
        let symbols = self.debug_files.symbols(server);
        let symbols = symbols.search_processes().files(files.clone());
        let symbols = symbols.abandoned_by(Arc::clone(is_ending));
        let symbols = symbols.worker_memory(DECODER_MEMORY);
        if self.no_symbols {
            symbols.without_functions()
        } else {
            symbols
        }
    }

    /// Describes the settings, one in a line.
    pub(super) fn summary(&self) -> Result<String, Error> {
        let endpoint = self.endpoint()?;
        let protocol = endpoint.protocol();
        let interval = self.interval.as_secs_f64();
        let limits = self.queue_limits;
        let queue = match &self.queue_dir {
            Some(path) => format!(
                "{} bytes in {}",
                limits.directory,
                escape(&path.to_string_lossy())
            ),
            None => format!("{} bytes in memory", limits.memory),
        };
        let waits = match self.wall.frequency() {
            Some(frequency) => format!("{frequency} scans in a second"),
            None => "not sampled".to_owned(),
        };
        let budget = match self.cpu_budget {
            Some(part) => format!("at most {:.2} %", 100.0 * part),
            None => "any part".to_owned(),
        };
        let CardinalityLimits {
            attributes,
            values,
            routes,
            ..
        } = self.cardinality;
        let listen = self
            .listen
            .map_or("nowhere".to_owned(), |it| it.to_string());
        Ok(format!(
            "collector    {endpoint} over {protocol}, every {interval} s\n\
             queue        {queue}\n\
             metrics      {listen}\n\
             sampling     {} Hz on each CPU, for {budget} of one\n\
             waits        {waits}\n\
             attributes   at most {attributes} names, {values} values of each, {routes} routes\n",
            self.frequency
        ))
    }
}

/// Returns the settings that are in force.
pub(super) fn current(settings: &Mutex<Arc<Settings>>) -> Arc<Settings> {
    let settings = settings.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(&settings)
}
