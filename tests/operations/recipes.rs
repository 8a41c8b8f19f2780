//! The recipes of the documentation, tried as they are on their page: the configuration of each is served by a gateway, and
//! every command is answered as the page shows.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Origin, Request, TlsServer, free_port, skipped};

use crate::pages::{blocks, certificates};
use crate::weir;

const PAGE: &str = include_str!("../../docs/guide/recipes.md");
/// The shortest time of a recipe after which something ends.
const STANDSTILL: Duration = Duration::from_secs(2);

/// One section of the page.
struct Recipe<'a> {
    title: &'a str,
    configuration: String,
    /// Other files, by name.
    files: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    steps: Vec<Step>,
}

/// A command, and what the page shows as its answer.
struct Step {
    command: String,
    shown: String,
}

impl Recipe<'_> {
    fn of(section: &str) -> Recipe<'_> {
        let title = section.lines().next().unwrap_or_default();
        let mut recipe = Recipe {
            title,
            configuration: String::new(),
            files: certificates(),
            environment: Vec::new(),
            steps: Vec::new(),
        };
        for block in blocks(section) {
            match (block.info, block.text.strip_prefix("# ").and_then(|text| text.lines().next())) {
                ("yaml" | "yaml fragment", Some(name)) => recipe.files.push((name.to_owned(), block.text)),
                ("yaml", None) => recipe.configuration = block.text,
                ("console", _) => recipe.console(&block.text),
                (info, _) => panic!("{title}: a block of a recipe is `yaml` or `console`, not `{info}`"),
            }
        }
        assert!(!recipe.configuration.is_empty() && !recipe.steps.is_empty(), "{title}: it is not complete");
        recipe
    }

    /// Commands begin with `$ ` and go on after a backslash; `export` also tells the environment of the gateway.
    fn console(&mut self, text: &str) {
        let mut goes_on = false;
        for line in text.lines() {
            let first = line.strip_prefix("$ ");
            match (first.and_then(|command| command.strip_prefix("export ")), first) {
                (Some(assignment), _) => {
                    let (name, value) = assignment.split_once('=').expect("export NAME=VALUE");
                    self.environment.push((name.to_owned(), value.trim_matches('\'').to_owned()));
                }
                (None, Some(command)) => {
                    self.steps.push(Step { command: command.to_owned(), shown: String::new() });
                }
                (None, None) => {
                    let step = self.steps.last_mut().expect("a command comes first");
                    let text = if goes_on { &mut step.command } else { &mut step.shown };
                    text.push('\n');
                    text.push_str(line);
                }
            }
            goes_on = line.ends_with('\\') && (goes_on || first.is_some());
        }
    }

    /// What was answered otherwise than the page shows.
    fn problems(&self, stage: &Stage) -> Vec<String> {
        let mut launcher = weir();
        for (name, value) in &self.environment {
            launcher = launcher.env(name, value);
        }
        for (name, content) in &self.files {
            launcher = launcher.file(name, &stage.told(content));
        }
        let gateway = launcher.start(&stage.told(&self.configuration));
        let ports = Ports::of(&gateway, stage);
        let answered = |step: &Step| {
            let shown = step.shown.trim_matches('\n');
            let text = self.answer(step, &ports, &gateway);
            let problem = || format!("{}:\n$ {}\n{text}\n--- instead of\n{shown}", self.title, step.command);
            (!fits(shown, &text)).then(problem)
        };
        self.steps.iter().filter_map(answered).collect()
    }

    /// The same. What a recipe shows can depend on time, such as that of a circuit breaker, so it is tried once more if it took so long that
    /// a machine must have stood still.
    fn lasting_problems(&self, stage: &Stage) -> Vec<String> {
        let began = Instant::now();
        let problems = self.problems(stage);
        if problems.is_empty() || began.elapsed() < STANDSTILL { problems } else { self.problems(stage) }
    }

    fn answer(&self, step: &Step, ports: &Ports, gateway: &Gateway) -> String {
        let shown = step.shown.trim_matches('\n');
        let end = Instant::now() + DEADLINE;
        loop {
            let text = self.run(&step.command, ports, gateway);
            // Requests to the gateway are sent once. Everything else shows their effects, which may come later.
            let is_request = [":9080", ":9443", ":9180"].iter().any(|port| step.command.contains(port));
            if is_request || fits(shown, &text) || Instant::now() > end {
                return text;
            }
        }
    }

    fn run(&self, command: &str, ports: &Ports, gateway: &Gateway) -> String {
        let script = format!("{PRELUDE}{}", ports.actual(command));
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(gateway.directory().path());
        shell.envs(self.environment.iter().map(|(name, value)| (name, value)));
        shell.env("WEIR", env!("CARGO_BIN_EXE_weir"));
        let output = shell.output().expect("there is a shell");
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        ports.shown(&text.replace("\r\n", "\n")).trim_end().to_owned()
    }
}

/// `curl` without settings of whoever runs the test, and the program under test.
const PRELUDE: &str =
    "curl() { command curl -q -sS --noproxy '*' --max-time 20 \"$@\"; }\nweir() { \"$WEIR\" \"$@\"; }\n";

/// Whether a text is what the page shows; `…` stands for any text.
fn fits(shown: &str, text: &str) -> bool {
    let mut parts: Vec<&str> = shown.split('…').collect();
    let last = parts.pop().expect("a split has a part");
    let Some((first, middle)) = parts.split_first() else { return text == last };
    let Some(rest) = text.strip_prefix(first) else { return false };
    let after = middle.iter().try_fold(rest, |rest, part| rest.find(part).map(|at| &rest[at + part.len()..]));
    after.is_some_and(|rest| rest.ends_with(last))
}

/// Ports of the page, and those that stand for them.
struct Ports(Vec<(u16, u16)>);

impl Ports {
    fn of(gateway: &Gateway, stage: &Stage) -> Ports {
        let mut ports: Vec<(u16, u16)> = stage.ports.iter().map(|(&shown, &actual)| (shown, actual)).collect();
        for (shown, scheme) in [(9080, "http"), (9443, "https")] {
            ports.extend(gateway.addrs_of(scheme).first().map(|address| (shown, address.port())));
        }
        ports.push((7085, gateway.status_addr().port()));
        let stderr = gateway.stderr();
        let admin = stderr.lines().find_map(|line| line.strip_prefix("weir: admin on ")?.parse::<SocketAddr>().ok());
        ports.extend(admin.map(|address| (9180, address.port())));
        Ports(ports)
    }

    fn actual(&self, text: &str) -> String {
        with_ports(text, |port| self.0.iter().find(|(shown, _)| *shown == port).map(|(_, actual)| *actual))
    }

    fn shown(&self, text: &str) -> String {
        with_ports(text, |port| self.0.iter().find(|(_, actual)| *actual == port).map(|(shown, _)| *shown))
    }
}

/// Replaces the numbers that follow a colon, each as a whole and once: other ports can begin with the same digits.
fn with_ports(text: &str, other: impl Fn(u16) -> Option<u16>) -> String {
    let mut parts = text.split(':');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        let replaced = number.parse().ok().and_then(&other).map(|port| port.to_string());
        out.extend([":", replaced.as_deref().unwrap_or(number), rest]);
    }
    out
}

/// What the page speaks of beside the gateway, on other ports.
struct Stage {
    ports: BTreeMap<u16, u16>,
    _origins: Vec<Origin>,
}

impl Stage {
    fn new() -> Stage {
        let authority = Authority::of_tests();
        let tls = TlsServer::asking(&authority.identity(&["127.0.0.1"]), authority);
        let origins = [
            (8001, Origin::serving(|request| backend(8001, request))),
            (8002, Origin::serving(|request| backend(8002, request))),
            (8443, Origin::serving_tls(&tls, |request| backend(8443, request))),
            (9200, Origin::serving(stored)),
            (3100, Origin::serving(|_| Answer::status(204, ""))),
            (4318, Origin::serving(|_| Answer::with(200, "Content-Type: application/x-protobuf\r\n", ""))),
        ];
        let mut ports: BTreeMap<u16, u16> =
            origins.iter().map(|(port, origin)| (*port, origin.addr().port())).collect();
        ports.insert(8009, free_port());
        ports.insert(50051, grpc_service().port());
        Stage { ports, _origins: origins.into_iter().map(|(_, origin)| origin).collect() }
    }

    /// A file of the page with the addresses and the day of this test.
    fn told(&self, text: &str) -> String {
        // A redirect to HTTPS names the port that the configuration has.
        let secure = free_port();
        let told = with_ports(text, |port| match port {
            9080 | 9180 => Some(0),
            9443 => Some(secure),
            port => self.ports.get(&port).copied(),
        });
        told.replace("days: [sun]", &format!("days: [{}]", today()))
    }
}

/// Today, and the days around it, since a day may end while a test runs and has not begun everywhere.
fn today() -> String {
    const DAYS: [&str; 7] = ["thu", "fri", "sat", "sun", "mon", "tue", "wed"]; // 1970 began with a Thursday
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970").as_secs();
    let day = (seconds / 86_400) as usize;
    [day - 1, day, day + 1].map(|day| DAYS[day % 7]).join(", ")
}

/// A service of the page's reader.
fn backend(port: u16, request: &Request) -> Answer {
    const PLAIN: &str = "Content-Type: text/plain\r\nX-Powered-By: PHP/5.2\r\n";
    let Request { method, target, .. } = request;
    let line = format!("{port} {method} {target}\n");
    if request.headers.has("upgrade") {
        return websocket();
    }
    match target.split('?').next().unwrap_or_default() {
        path if path.starts_with("/headers") => {
            let fields = request.headers.0.iter().map(|(name, value)| format!("{name}: {value}\n"));
            ok(PLAIN, fields.collect::<String>())
        }
        "/echo" => ok("Content-Type: application/json\r\n", &request.body),
        "/events" => ok("Content-Type: text/event-stream\r\n", "data: one\n\ndata: two\n\n"),
        // Nothing, and the connection stays open.
        "/slow" => Answer::raw(""),
        "/check" => match request.headers.get("authorization") {
            Some("Bearer good") => ok("X-User: jack\r\n", ""),
            _ => Answer::status(401, "Who are you?\n"),
        },
        path => match path.strip_prefix("/status/").and_then(|status| status.parse().ok()) {
            Some(status) => Answer::with(status, PLAIN, line),
            None => ok(PLAIN, line),
        },
    }
}

/// As `Answer::with`, and with the reason that a reader expects.
fn ok(fields: &str, body: impl AsRef<[u8]>) -> Answer {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    Answer::raw([head.as_bytes(), body].concat())
}

/// Opens a WebSocket for the key of RFC 6455 §1.3, says `hello`, and closes it.
fn websocket() -> Answer {
    const HEAD: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    Answer::raw([HEAD, b"\x81\x05hello\x88\x00"].concat()).then_close()
}

/// Elasticsearch as far as `_bulk`: every record is stored.
fn stored(request: &Request) -> Answer {
    let lines = request.body.iter().filter(|&&byte| byte == b'\n').count();
    let items = vec![r#"{"create":{"status":201}}"#; lines / 2].join(",");
    Answer::with(200, "Content-Type: application/json\r\n", format!(r#"{{"errors":false,"items":[{items}]}}"#))
}

/// A gRPC service that answers every call with an empty message, once it has read the whole request, as a service of unary
/// calls does. (curl 7.88 waits for ever if the response ends before the request.)
fn grpc_service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = listener.local_addr().expect("a bound socket has an address");
    listener.set_nonblocking(true).expect("it is a socket");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move { drop(answer_calls(stream).await) });
            }
        });
    });
    address
}

async fn answer_calls(stream: tokio::net::TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(call) = connection.accept().await {
        let (call, respond) = call?;
        tokio::spawn(async move { drop(answer_call(call.into_body(), respond).await) });
    }
    Ok(())
}

async fn answer_call(
    mut message: h2::RecvStream,
    mut respond: h2::server::SendResponse<bytes::Bytes>,
) -> Result<(), h2::Error> {
    while let Some(piece) = message.data().await {
        message.flow_control().release_capacity(piece?.len())?;
    }
    let head = http::Response::builder().header("content-type", "application/grpc").body(()).expect("a head");
    let mut sending = respond.send_response(head, false)?;
    sending.send_data(bytes::Bytes::from_static(&[0; 5]), false)?;
    let status = [(http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("0"))];
    sending.send_trailers(status.into_iter().collect())
}

#[test]
fn every_recipe_is_answered_as_its_page_shows() {
    if !Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skipped("there is no curl");
    }
    let recipes: Vec<Recipe> = PAGE.split("\n### ").skip(1).map(Recipe::of).collect();
    assert!(recipes.len() >= 40, "{}", recipes.len());
    let stage = Stage::new();
    let mut problems = Vec::new();
    for some in recipes.chunks(4) {
        thread::scope(|scope| {
            let tried: Vec<_> =
                some.iter().map(|recipe| (recipe.title, scope.spawn(|| recipe.lasting_problems(&stage)))).collect();
            for (title, tried) in tried {
                problems
                    .extend(tried.join().unwrap_or_else(|_| vec![format!("{title}: it cannot be tried; see above")]));
            }
        });
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

#[test]
fn ports_that_begin_with_the_digits_of_others_stay_as_they_are() {
    let other = |port: u16| (port == 3100).then_some(43_189);
    let replaced = with_ports("a:3100 b:31007 c:43189 d::3100/e: f", other);
    assert_eq!(replaced, "a:43189 b:31007 c:43189 d::43189/e: f");
}

#[test]
fn output_shown_on_a_page_is_compared_in_full() {
    assert!(fits("a\n…\nb", "a\nx\ny\nb"));
    assert!(fits("a…", "abc"));
    assert!(fits("same", "same"));
    assert!(!fits("same", "same and more"));
    assert!(!fits("a…b…c", "acb"));
}
