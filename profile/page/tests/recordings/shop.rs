//! A shop of three services, as a recording of such looks: Python, Node.js and Rust, with plumbing,
//! time that threads waited, and the spans of each request.

use std::collections::HashMap;

use otelctx_page::{Context, Function, Kind, Language, Node, Recording, Sample, Span, Thread};

use super::Random;

const PERIOD: u64 = 10_000_000;
const REQUESTS: u32 = 240;

/// Stacks by service and route: how often of 100, the kind, and the frames below the service's start.
type Stacks = [(u32, Kind, &'static str)];

const PYTHON_START: &str = "_start main Py_BytesMain Thread._bootstrap Thread.run worker serve";
const NODE_START: &str = "_start node::Start uv_run node:http.parserOnIncoming express.handle";
const RUST_START: &str =
    "_start std::rt::lang_start payments::main tokio::runtime::poll payments::serve";

const REPORT: &Stacks = &[
    (
        46,
        Kind::Running,
        "Handler.do_GET report.render report.total sum.<genexpr> _PyEval_EvalFrame gen_iternext",
    ),
    (
        14,
        Kind::Running,
        "Handler.do_GET report.render json.dumps JSONEncoder.encode _PyObject_Call c_make_encoder",
    ),
    (
        10,
        Kind::Running,
        "Handler.do_GET report.render report.total Order.price Decimal.__mul__ mpd_qmul",
    ),
    (
        6,
        Kind::Running,
        "Handler.do_GET report.load sqlite3_step sqlite3VdbeExec",
    ),
    (
        5,
        Kind::Running,
        "Handler.do_GET report.load sqlite3_step sqlite3OsRead entry_SYSCALL_64 vfs_read ext4_file_read",
    ),
    (
        9,
        Kind::Waiting,
        "Handler.do_GET report.load sqlite3_step sqlite3OsRead entry_SYSCALL_64 vfs_read io_schedule",
    ),
    (
        10,
        Kind::Queued,
        "Handler.do_GET report.render report.total sum.<genexpr>",
    ),
];
const CART: &Stacks = &[
    (
        30,
        Kind::Running,
        "Handler.do_GET cart.show Cart.total Item.discount _PyEval_EvalFrame fnmatch.filter",
    ),
    (
        18,
        Kind::Running,
        "Handler.do_GET cart.show Template.render _PyEval_EvalFrame Markup.escape",
    ),
    (
        12,
        Kind::Running,
        "Handler.do_GET cart.show Cart.total Item.price Decimal.__mul__ mpd_qmul",
    ),
    (
        30,
        Kind::Waiting,
        "Handler.do_GET cart.show Session.post socket.recv entry_SYSCALL_64 tcp_recvmsg schedule_timeout",
    ),
    (10, Kind::Queued, "Handler.do_GET cart.show Template.render"),
];
const SEARCH: &Stacks = &[
    (
        40,
        Kind::Running,
        "router.search Index.query Index.rank Array.sort compareScores",
    ),
    (
        22,
        Kind::Running,
        "router.search Index.query tokenize RegExp.exec",
    ),
    (
        12,
        Kind::Running,
        "router.search res.json JSON.stringify v8::internal::JsonStringify",
    ),
    (
        14,
        Kind::Waiting,
        "router.search fetchImages uv__io_poll entry_SYSCALL_64 do_epoll_wait",
    ),
    (12, Kind::Queued, "router.search Index.query"),
];
const IMAGES: &Stacks = &[
    (
        70,
        Kind::Running,
        "router.images resize sharp::Pipeline::Execute vips_reduce_gen",
    ),
    (
        20,
        Kind::Running,
        "router.images resize sharp::Pipeline::Execute jpeg_idct_islow",
    ),
    (
        10,
        Kind::Running,
        "router.images fs.readFile entry_SYSCALL_64 vfs_read ext4_file_read",
    ),
];
const PAY: &Stacks = &[
    (
        44,
        Kind::Running,
        "payments::pay::handle payments::card::verify ring::rsa::verify bn_mul_mont",
    ),
    (
        12,
        Kind::Running,
        "payments::pay::handle serde_json::from_slice payments::pay::Order::deserialize",
    ),
    (
        10,
        Kind::Running,
        "payments::pay::handle payments::ledger::append entry_SYSCALL_64 vfs_write ext4_file_write",
    ),
    (
        34,
        Kind::Waiting,
        "payments::pay::handle payments::ledger::append fsync entry_SYSCALL_64 jbd2_log_wait_commit",
    ),
];
const NO_ROUTE: &Stacks = &[
    (
        50,
        Kind::Running,
        "gc_collect_main deduce_unreachable visit_reachable",
    ),
    (
        50,
        Kind::Running,
        "metrics.flush json.dumps JSONEncoder.encode _PyObject_Call c_make_encoder",
    ),
];

/// Files and lines of functions that are not the runtimes' own.
const PLACES: &[(&str, &str, u32, Language)] = &[
    ("worker", "shop/server.py", 31, Language::Python),
    ("serve", "shop/server.py", 52, Language::Python),
    ("Handler.do_GET", "shop/server.py", 88, Language::Python),
    ("report.", "shop/report.py", 18, Language::Python),
    ("sum.<genexpr>", "shop/report.py", 27, Language::Python),
    ("cart.", "shop/cart.py", 40, Language::Python),
    ("Cart.", "shop/cart.py", 88, Language::Python),
    ("Item.", "shop/item.py", 61, Language::Python),
    ("Order.", "shop/order.py", 19, Language::Python),
    (
        "Session.",
        "site-packages/requests/sessions.py",
        637,
        Language::Python,
    ),
    (
        "Template.",
        "site-packages/jinja2/environment.py",
        1269,
        Language::Python,
    ),
    (
        "Markup.",
        "site-packages/markupsafe/__init__.py",
        90,
        Language::Python,
    ),
    ("metrics.", "shop/metrics.py", 12, Language::Python),
    (
        "json",
        "/usr/lib/python3.12/json/__init__.py",
        183,
        Language::Python,
    ),
    (
        "JSONEncoder",
        "/usr/lib/python3.12/json/encoder.py",
        183,
        Language::Python,
    ),
    (
        "fnmatch",
        "/usr/lib/python3.12/fnmatch.py",
        54,
        Language::Python,
    ),
    (
        "socket.",
        "/usr/lib/python3.12/socket.py",
        707,
        Language::Python,
    ),
    (
        "Decimal",
        "/usr/lib/python3.12/_pydecimal.py",
        1284,
        Language::Python,
    ),
    (
        "Thread.",
        "/usr/lib/python3.12/threading.py",
        1012,
        Language::Python,
    ),
    ("router.", "web/router.js", 24, Language::JavaScript),
    ("Index.", "web/search.js", 77, Language::JavaScript),
    ("tokenize", "web/search.js", 12, Language::JavaScript),
    ("compareScores", "web/search.js", 140, Language::JavaScript),
    ("fetchImages", "web/images.js", 8, Language::JavaScript),
    ("resize", "web/images.js", 31, Language::JavaScript),
    (
        "express",
        "node_modules/express/lib/router.js",
        144,
        Language::JavaScript,
    ),
    (
        "res.",
        "node_modules/express/lib/response.js",
        239,
        Language::JavaScript,
    ),
    ("node:", "node:_http_server", 1152, Language::JavaScript),
    ("Array.", "", 0, Language::JavaScript),
    ("RegExp.", "", 0, Language::JavaScript),
    ("JSON.", "", 0, Language::JavaScript),
    ("fs.", "node:fs", 440, Language::JavaScript),
    ("payments::card", "src/card.rs", 112, Language::Native),
    ("payments::ledger", "src/ledger.rs", 45, Language::Native),
    ("payments::pay", "src/pay.rs", 29, Language::Native),
    ("payments::", "src/main.rs", 14, Language::Native),
    (
        "ring::",
        "ring-0.17/src/rsa/verification.rs",
        90,
        Language::Native,
    ),
    (
        "serde_json",
        "serde_json-1.0/src/de.rs",
        2701,
        Language::Native,
    ),
    ("entry_SYSCALL", "[kernel]", 0, Language::Kernel),
    ("vfs_", "[kernel]", 0, Language::Kernel),
    ("ext4_", "[kernel]", 0, Language::Kernel),
    ("tcp_", "[kernel]", 0, Language::Kernel),
    ("do_epoll", "[kernel]", 0, Language::Kernel),
    ("schedule", "[kernel]", 0, Language::Kernel),
    ("io_schedule", "[kernel]", 0, Language::Kernel),
    ("jbd2_", "[kernel]", 0, Language::Kernel),
];
/// Starts of names of plumbing, and the index of its kind.
const PLUMBING: &[(&str, u8)] = &[
    ("_start", 0),
    ("main", 0),
    ("Py_BytesMain", 0),
    ("Thread.", 0),
    ("std::rt", 0),
    ("node::Start", 0),
    ("_Py", 1),
    ("gen_iternext", 1),
    ("c_make_encoder", 1),
    ("uv_run", 2),
    ("tokio::", 2),
    ("entry_SYSCALL", 3),
];

/// A service with its threads, its start, and its routes with how many of 100 requests are for them.
struct Service {
    name: &'static str,
    start: &'static str,
    thread: &'static str,
    threads: usize,
}

const SERVICES: [Service; 3] = [
    Service {
        name: "shop",
        start: PYTHON_START,
        thread: "worker",
        threads: 6,
    },
    Service {
        name: "web",
        start: NODE_START,
        thread: "node",
        threads: 1,
    },
    Service {
        name: "payments",
        start: RUST_START,
        thread: "tokio-runtime-w",
        threads: 3,
    },
];
/// Service, route, stacks, samples of a request, and how many of 100 requests.
const ROUTES: [(usize, &str, &Stacks, u32, u32); 5] = [
    (0, "/report", REPORT, 16, 24),
    (0, "/cart", CART, 7, 26),
    (1, "/search", SEARCH, 6, 24),
    (1, "/images/{id}", IMAGES, 9, 14),
    (2, "/pay", PAY, 8, 12),
];

pub(crate) fn recording() -> Recording {
    let mut maker = Maker::new();
    for request in 0..REQUESTS {
        maker.request(request);
    }
    maker.rest();
    maker.recording
}

struct Maker {
    random: Random,
    recording: Recording,
    functions: HashMap<&'static str, u32>,
    children: HashMap<(u32, u32), u32>,
    /// When each thread is free.
    free: Vec<u64>,
}

impl Maker {
    fn new() -> Self {
        let kinds = ["start", "interpreter", "event loop", "system call"];
        let mut recording = Recording {
            title: "shop.otlp".to_owned(),
            period: PERIOD,
            start: 1_795_921_537_522_000_000,
            by: "http.route".to_owned(),
            plumbing: kinds.map(str::to_owned).to_vec(),
            nodes: vec![Node::default()],
            services: SERVICES
                .iter()
                .map(|service| service.name.to_owned())
                .collect(),
            routes: ROUTES.iter().map(|route| route.1.to_owned()).collect(),
            ..Recording::default()
        };
        for (index, service) in SERVICES.iter().enumerate() {
            for thread in 0..service.threads {
                let pid = 4711 + index as u32 * 12;
                let tid = pid + thread as u32;
                let name = format!("{}-{thread}", service.thread);
                recording.threads.push(Thread {
                    pid,
                    tid,
                    service: index as u32,
                    name,
                });
            }
        }
        let free = vec![0; recording.threads.len()];
        let (functions, children) = (HashMap::new(), HashMap::new());
        Self {
            random: Random(7),
            recording,
            functions,
            children,
            free,
        }
    }

    fn function(&mut self, name: &'static str) -> u32 {
        if let Some(known) = self.functions.get(name) {
            return *known;
        }
        let place = PLACES.iter().find(|place| name.starts_with(place.0));
        let plumbing = PLUMBING
            .iter()
            .find(|kind| name.starts_with(kind.0))
            .map(|kind| kind.1);
        let (_, file, line, language) = place.unwrap_or(&("", "", 0, Language::Native));
        // Functions of a file have lines of their own.
        let line = if *line > 0 {
            line + self.functions.len() as u32 % 9 * 7
        } else {
            0
        };
        self.recording.functions.push(Function {
            name: name.to_owned(),
            file: (*file).to_owned(),
            line,
            language: *language,
            plumbing,
        });
        let index = self.recording.functions.len() as u32 - 1;
        self.functions.insert(name, index);
        index
    }

    fn stack(&mut self, start: &'static str, frames: &'static str) -> u32 {
        let mut node = 0;
        for name in start.split(' ').chain(frames.split(' ')) {
            let function = self.function(name);
            let Self {
                children,
                recording,
                ..
            } = self;
            node = *children.entry((node, function)).or_insert_with(|| {
                recording.nodes.push(Node {
                    parent: node,
                    function,
                });
                recording.nodes.len() as u32 - 1
            });
        }
        node
    }

    fn context(&mut self, trace: u32, route: usize) -> u32 {
        let span = self.random.next().to_be_bytes();
        let (trace, route) = (Some(trace), Some(route as u32));
        self.recording.contexts.push(Context { trace, span, route });
        self.recording.contexts.len() as u32 - 1
    }

    fn request(&mut self, request: u32) {
        let id = [
            self.random.next().to_be_bytes(),
            self.random.next().to_be_bytes(),
        ]
        .concat();
        self.recording.traces.push(id.try_into().unwrap());
        let mut part = self.random.below(100) as u32;
        let route = ROUTES
            .iter()
            .position(|route| match part.checked_sub(route.4) {
                Some(rest) => {
                    part = rest;
                    false
                }
                None => true,
            });
        let route = route.unwrap_or(0);
        let start = u64::from(request) * 50_000_000 + self.random.below(40_000_000) as u64;
        let parent = self.serve(request, route, start, None);
        // A cart asks for payments while it waits.
        if route == 1 {
            let begin = self.recording.spans[parent as usize].start + 8_000_000;
            let payment = self.serve(request, 4, begin, Some(parent));
            self.wait_for(parent, payment);
        }
    }

    /// Serves a route on the thread of its service that is free first; returns the index of its span.
    fn serve(&mut self, trace: u32, route: usize, start: u64, parent: Option<u32>) -> u32 {
        let (service, name, stacks, samples, _) = ROUTES[route];
        let of_service = |thread: &usize| self.recording.threads[*thread].service == service as u32;
        let threads = (0..self.free.len()).filter(of_service);
        let thread = threads.min_by_key(|thread| self.free[*thread]).unwrap();
        let begin = start.max(self.free[thread]);
        let context = self.context(trace, route);
        let count = (samples as usize / 2 + self.random.below(samples as usize)) as u64;
        self.samples(thread, context, stacks, begin, count);
        let index = self.recording.spans.len() as u32;
        let id = self.recording.contexts[context as usize].span;
        let (service, method) = (service as u32, if route == 4 { "POST" } else { "GET" });
        let name = format!("{method} {name}");
        let duration = count * PERIOD;
        self.free[thread] = begin + duration;
        self.recording.spans.push(Span {
            trace,
            id,
            parent,
            service,
            name,
            start: begin,
            duration,
        });
        index
    }

    /// The thread of a span waits until another has ended, and answers.
    fn wait_for(&mut self, span: u32, other: u32) {
        let of = |index: u32| &self.recording.spans[index as usize];
        let until = of(other).start + of(other).duration;
        let (start, mut time) = (of(span).start, of(span).start + of(span).duration);
        let is_own = |sample: &&Sample| {
            let context = sample
                .context
                .map(|context| self.recording.contexts[context as usize]);
            context.is_some_and(|context| context.span == of(span).id)
        };
        let last = self.recording.samples.iter().rev().find(is_own).copied();
        let Sample {
            thread, context, ..
        } = last.unwrap();
        let node = self.stack(PYTHON_START, CART[3].2);
        while time < until {
            let (kind, weight) = (Kind::Waiting, PERIOD);
            let sample = Sample {
                time,
                thread,
                kind,
                weight,
                context,
                node,
            };
            self.recording.samples.push(sample);
            time += PERIOD;
        }
        self.recording.spans[span as usize].duration = time - start;
        self.free[thread as usize] = time;
    }

    fn samples(
        &mut self,
        thread: usize,
        context: u32,
        stacks: &'static Stacks,
        begin: u64,
        count: u64,
    ) {
        let service = self.recording.threads[thread].service as usize;
        for at in 0..count {
            let mut part = self.random.below(100) as u32;
            let mut chosen = &stacks[0];
            for stack in stacks {
                chosen = stack;
                if part < stack.0 {
                    break;
                }
                part -= stack.0;
            }
            let node = self.stack(SERVICES[service].start, chosen.2);
            let late = self.random.below(300_000) as u64;
            let time = begin + at * PERIOD + late;
            let (thread, context) = (thread as u32, Some(context));
            let sample = Sample {
                time,
                thread,
                kind: chosen.1,
                weight: PERIOD,
                context,
                node,
            };
            self.recording.samples.push(sample);
        }
    }

    /// Work without a request, now and then.
    fn rest(&mut self) {
        for second in 0..12 {
            for (at, stack) in NO_ROUTE.iter().enumerate() {
                let node = self.stack(SERVICES[0].start, stack.2);
                for sample in 0..4 {
                    let time = second * 1_000_000_000 + at as u64 * 300_000_000 + sample * PERIOD;
                    let thread = at as u32;
                    let (kind, weight) = (Kind::Running, PERIOD);
                    let sample = Sample {
                        time,
                        thread,
                        kind,
                        weight,
                        context: None,
                        node,
                    };
                    self.recording.samples.push(sample);
                }
            }
            // A thread without work waits for some.
            let node = self.stack(SERVICES[0].start, "serve");
            self.recording.samples.push(Sample {
                time: second * 1_000_000_000,
                thread: 0,
                kind: Kind::Idle,
                weight: 300_000_000,
                context: None,
                node,
            });
        }
    }
}
