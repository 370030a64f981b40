//! A recording of four services: by default 1,000,000 samples, 2,000 traces, 40 routes, 20,000 functions
//! and some 50,000 distinct stacks. The bounds of the page are for it.

use std::collections::{HashMap, HashSet};

use otelctx_page::{Context, Function, Kind, Language, Node, Recording, Sample, Thread};

use super::{Random, Zipf};

const PERIOD: u64 = 10_100_000;
const SECONDS: f64 = 160.0;
const SERVICES: [(&str, Language, &str, usize); 4] = [
    ("shop", Language::Python, "ThreadPool", 16),
    ("web", Language::JavaScript, "libuv-worker", 12),
    ("orders", Language::Java, "http-nio-exec", 48),
    ("gateway", Language::Native, "tokio-worker", 24),
];
const ROUTES: usize = 40;
const WORDS: &str = "cart order user price total item stock search index query cache token session parse \
    render encode decode fetch load store merge sort filter batch event queue worker handler service client \
    request response header body stream buffer page node tree graph key value map list row column table \
    schema model view route rule policy retry timer lock pool task thread file path socket connection \
    invoice payment refund catalog image thumb report metric";

/// A recording with this many samples, stacks and traces.
pub(crate) fn recording(samples: usize, stacks: usize, traces: usize) -> Recording {
    let mut maker = Maker::new();
    maker.routes();
    let leaves = maker.stacks(stacks);
    maker.threads();
    let contexts = maker.contexts(traces);
    maker.samples(samples, &leaves, &contexts);
    maker.recording
}

struct Maker {
    random: Random,
    recording: Recording,
    words: Vec<&'static str>,
    functions: Vec<Vec<u32>>,
    kernel: Vec<u32>,
    known: HashMap<(String, String), u32>,
    children: HashMap<(u32, u32), u32>,
    depth: Vec<u32>,
}

/// The stacks of a route, and how often each occurs.
struct Leaves {
    nodes: Vec<u32>,
    often: Zipf,
}

impl Maker {
    fn new() -> Self {
        let recording = Recording {
            title: "synthetic, 4 services".to_owned(),
            period: PERIOD,
            start: 1_795_921_537_522_000_000,
            by: "http.route".to_owned(),
            plumbing: vec!["interpreter".to_owned()],
            nodes: vec![Node::default()],
            services: SERVICES.map(|(name, ..)| name.to_owned()).to_vec(),
            ..Recording::default()
        };
        let mut maker = Self {
            random: Random(12345),
            recording,
            words: WORDS.split_whitespace().collect(),
            functions: vec![Vec::new(); SERVICES.len()],
            kernel: Vec::new(),
            known: HashMap::new(),
            children: HashMap::new(),
            depth: vec![0],
        };
        maker.kernel = (0..1200).map(|_| maker.kernel_function()).collect();
        for service in 0..SERVICES.len() {
            maker.functions[service] = (0..4700).map(|_| maker.function(service)).collect();
        }
        maker
    }

    fn word(&mut self) -> &'static str {
        let Self { random, words, .. } = self;
        words[random.below(words.len())]
    }

    fn title_word(&mut self) -> String {
        let word = self.word();
        word[..1].to_uppercase() + &word[1..]
    }

    /// Adds a function, whose line makes it different from others of its name and file.
    fn add(&mut self, mut function: Function) -> u32 {
        let key = (function.name.clone(), function.file.clone());
        let same = self.known.entry(key).or_insert(0);
        function.line += *same * 1_000;
        *same += 1;
        self.recording.functions.push(function);
        self.recording.functions.len() as u32 - 1
    }

    fn kernel_function(&mut self) -> u32 {
        let starts = [
            "__x64_sys",
            "tcp",
            "do",
            "ext4",
            "skb",
            "futex",
            "vfs",
            "ip",
            "epoll",
        ];
        let start = *self.random.pick(&starts);
        let name = format!("{start}_{}_{}", self.word(), self.word());
        self.add(Function {
            name,
            language: Language::Kernel,
            ..Function::default()
        })
    }

    fn function(&mut self, service: usize) -> u32 {
        let (a, b, c, d) = (
            self.word(),
            self.title_word(),
            self.title_word(),
            self.word(),
        );
        let (module, line) = (self.random.below(40), self.random.below(900) as u32);
        let mut language = SERVICES[service].1;
        let mut plumbing = None;
        let lower = b.to_lowercase();
        let (name, file) = match service {
            0 if self.random.part() < 0.25 => {
                language = Language::Native;
                plumbing = Some(0);
                (format!("_Py_{b}{c}_{d}"), "libpython3.12.so".to_owned())
            }
            0 => (
                format!("{b}{c}.{a}_{d}"),
                format!("shop/{a}/{lower}{module}.py"),
            ),
            1 => (format!("{a}{b}{c}"), format!("dist/{a}/{lower}{module}.js")),
            2 => (
                format!("com.example.{a}.{b}{c}.{d}"),
                format!("{b}{c}.java"),
            ),
            _ => (
                format!("gateway::{a}::{lower}::{c}::{d}"),
                format!("src/{a}/{lower}.rs"),
            ),
        };
        self.add(Function {
            name,
            file,
            line,
            language,
            plumbing,
        })
    }

    fn routes(&mut self) {
        for route in 0..ROUTES {
            let id = if route % 3 == 0 { "" } else { "/{id}" };
            let name = format!("/{}{id}/{}", self.word(), self.word());
            self.recording.routes.push(name);
        }
    }

    fn child(&mut self, parent: u32, function: u32) -> u32 {
        let Self {
            children,
            recording,
            depth,
            ..
        } = self;
        *children.entry((parent, function)).or_insert_with(|| {
            recording.nodes.push(Node { parent, function });
            depth.push(depth[parent as usize] + 1);
            recording.nodes.len() as u32 - 1
        })
    }

    /// The stacks of each route, and at the end those without one.
    fn stacks(&mut self, stacks: usize) -> Vec<Leaves> {
        let share = |route: usize| ((route + 1) as f64).powf(-0.7);
        let all: f64 = (0..ROUTES).map(share).sum();
        let wanted = |route: usize| match route {
            ROUTES => 300,
            _ => (stacks as f64 * share(route) / all) as usize,
        };
        (0..=ROUTES)
            .map(|route| self.stacks_of(route % SERVICES.len(), wanted(route)))
            .collect()
    }

    fn stacks_of(&mut self, service: usize, wanted: usize) -> Leaves {
        let functions = self.functions[service].clone();
        let mut base = 0;
        for function in &functions[..9] {
            base = self.child(base, *function);
        }
        let often = Zipf::new(functions.len(), 0.35);
        let hot: Vec<u32> = (0..1600)
            .map(|_| functions[often.pick(&mut self.random)])
            .collect();
        for function in &hot[..4] {
            base = self.child(base, *function);
        }
        let (mut leaves, mut known, mut nodes) = (Vec::new(), HashSet::new(), vec![base]);
        while leaves.len() < wanted.max(1) {
            let place = self.random.part().powf(0.6) * nodes.len() as f64;
            let mut node = nodes[place as usize];
            for _ in 0..=self.random.below(4) {
                if self.depth[node as usize] < 58 {
                    let function = hot[(self.random.part().powf(1.6) * 1600.0) as usize];
                    node = self.child(node, function);
                    nodes.push(node);
                }
            }
            if self.random.part() < 0.12 {
                for _ in 0..3 + self.random.below(4) {
                    let function = self.kernel[(self.random.part().powi(3) * 1200.0) as usize];
                    node = self.child(node, function);
                }
            }
            if known.insert(node) {
                leaves.push(node);
            }
        }
        for index in (1..leaves.len()).rev() {
            leaves.swap(index, self.random.below(index + 1));
        }
        Leaves {
            often: Zipf::new(leaves.len(), 1.0),
            nodes: leaves,
        }
    }

    fn threads(&mut self) {
        for (service, (name, _, pool, count)) in SERVICES.into_iter().enumerate() {
            let pid = 1000 + service as u32 * 117;
            for index in 0..count as u32 {
                let pooled = format!("{pool}-{index}");
                let name = if index == 0 { name.to_owned() } else { pooled };
                let service = service as u32;
                self.recording.threads.push(Thread {
                    pid,
                    tid: pid + index,
                    service,
                    name,
                });
            }
        }
    }

    /// Contexts by service: a trace has one route in one service, and maybe others in others.
    fn contexts(&mut self, traces: usize) -> Vec<Vec<u32>> {
        let often = Zipf::new(ROUTES, 1.1);
        let mut by_service = vec![Vec::new(); SERVICES.len()];
        for trace in 0..traces as u32 {
            let id = [
                self.random.next().to_be_bytes(),
                self.random.next().to_be_bytes(),
            ]
            .concat();
            self.recording.traces.push(id.try_into().unwrap());
            let entry = often.pick(&mut self.random);
            for (service, contexts) in by_service.iter_mut().enumerate() {
                let route = if service == entry % SERVICES.len() {
                    entry
                } else if self.random.part() < 0.5 {
                    (often.pick(&mut self.random) / SERVICES.len() * SERVICES.len() + service)
                        % ROUTES
                } else {
                    continue;
                };
                for _ in 0..=self.random.below(4) {
                    contexts.push(self.recording.contexts.len() as u32);
                    let span = self.random.next().to_be_bytes();
                    let (trace, route) = (Some(trace), Some(route as u32));
                    self.recording.contexts.push(Context { trace, span, route });
                }
            }
        }
        by_service
    }

    fn samples(&mut self, count: usize, leaves: &[Leaves], contexts: &[Vec<u32>]) {
        let threads = self.recording.threads.len();
        for thread in 0..threads {
            let count = (thread + 1) * count / threads - thread * count / threads;
            let service = self.recording.threads[thread].service as usize;
            self.samples_of(thread as u32, count, leaves, &contexts[service]);
        }
    }

    /// A thread serves one context after the other, which advance with time.
    fn samples_of(&mut self, thread: u32, count: usize, leaves: &[Leaves], contexts: &[u32]) {
        let gap = (SECONDS * 1e9 - count as f64 * PERIOD as f64) / (count as f64 / 20.0).max(1.0);
        let (mut time, mut left) = (self.random.part() * PERIOD as f64, 0);
        let (mut context, mut route, mut node) = (None, ROUTES, 0);
        for index in 0..count {
            if left == 0 {
                left = 1 + (2.0 + self.random.normal()).exp() as u32;
                context = self.next_context(index as f64 / count as f64, contexts);
                let of =
                    context.and_then(|index: u32| self.recording.contexts[index as usize].route);
                route = of.map_or(ROUTES, |route| route as usize);
                time +=
                    (gap * 2.0 * self.random.part()).max(0.0) + self.random.part() * PERIOD as f64;
                node = leaves[route].nodes[leaves[route].often.pick(&mut self.random)];
            } else if self.random.part() > 0.3 {
                node = leaves[route].nodes[leaves[route].often.pick(&mut self.random)];
            }
            left -= 1;
            let (kind, weight) = match self.random.part() {
                part if part < 0.85 => (Kind::Running, PERIOD),
                part if part < 0.97 => (
                    Kind::Queued,
                    (14.0 + 1.5 * self.random.normal()).exp() as u64,
                ),
                _ if context.is_none() => (Kind::Idle, (11.0 + self.random.normal()).exp() as u64),
                _ => (Kind::Waiting, (11.0 + self.random.normal()).exp() as u64),
            };
            let skipped = if self.random.part() < 0.05 {
                self.random.below(3)
            } else {
                0
            };
            time += PERIOD as f64 * (1 + skipped) as f64 + self.random.normal() * 15_000.0;
            self.recording.samples.push(Sample {
                time: time as u64,
                thread,
                kind,
                weight,
                context,
                node,
            });
        }
    }

    fn next_context(&mut self, progress: f64, contexts: &[u32]) -> Option<u32> {
        if contexts.is_empty() || self.random.part() < 0.1 {
            return None;
        }
        let place = (progress * contexts.len() as f64) as i64 + self.random.below(120) as i64 - 60;
        Some(contexts[place.clamp(0, contexts.len() as i64 - 1) as usize])
    }
}
