//! The command itself: what it accepts, what it says, how it ends.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use weir_testkit::{Authority, DEADLINE, Signal, TempDir, eventually};

use crate::load::{origin, routes};
use crate::weir;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).output().expect("it was built")
}

#[track_caller]
fn ends(arguments: &[&str], code: i32, says: &str) {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?} said {said}");
    assert!(said.contains(says), "{arguments:?} said {said}");
}

const FILE: &str = "listen: [\"127.0.0.1:0\"]\nstatus: false\nroutes: []\n";
const FILE_HEAD: &str = "listen: [\"127.0.0.1:0\"]\nstatus: false\n";

#[test]
fn check_says_what_is_wrong_and_ends_with_1() {
    let place = TempDir::new();
    let path = |name: &str, content: &str| place.write(name, content).to_str().expect("ASCII").to_owned();
    let good = path("good.yaml", FILE);
    ends(&["check", &good], 0, "good.yaml is valid");
    ends(&["run", &good, "--check"], 0, "good.yaml is valid");
    let bad = path("bad.yaml", "lisen: []\nroutes:\n  - uri: 5\n");
    for arguments in [["check", &bad].as_slice(), &["run", "--check", &bad]] {
        ends(arguments, 1, "bad.yaml:1:1: lisen:");
        ends(arguments, 1, "bad.yaml:3:");
        ends(arguments, 1, "is not valid");
    }
    ends(&["run", &bad], 1, "bad.yaml:1:1: lisen:");
    ends(&["check", "/nowhere.yaml"], 1, "/nowhere.yaml: cannot be read: No such file");
    ends(&["run", "/nowhere.yaml"], 1, "/nowhere.yaml: cannot be read: No such file");
}

#[test]
fn check_refuses_a_log_file_that_can_never_be_written() {
    let place = TempDir::new();
    std::fs::create_dir(place.join("here")).expect("its own directory");
    let directory = place.join("here");
    let long = "x".repeat(256);
    for (name, says) in [
        (directory.to_str().expect("ASCII"), "plugins.file-logger.path: is a directory; add the name of the file"),
        ("logs/", "plugins.file-logger.path: names a directory; add the name of the file"),
        ("a\\nb", "plugins.file-logger.path: contains a line break"),
        (&long, "plugins.file-logger.path: has a part with 256 bytes"),
    ] {
        let plugins = format!("routes: [{{ uri: /*, plugins: {{ file-logger: {{ path: \"{name}\" }} }} }}]\n");
        let file = place.write("weir.yaml", format!("listen: [\"127.0.0.1:0\"]\n{plugins}"));
        ends(&["check", file.to_str().expect("ASCII")], 1, says);
    }
    for setting in ["enable_access_log: \"logs/\"", "enable_access_log: { path: \"a\\0b\" }", "data_dir: \"a\\nb\""] {
        let file = place.write("weir.yaml", format!("listen: [\"127.0.0.1:0\"]\n{setting}\n"));
        ends(&["check", file.to_str().expect("ASCII")], 1, "is not valid");
    }
}

#[test]
fn check_reads_directories_and_standard_input() {
    let place = TempDir::new();
    place.write("a.yaml", FILE);
    std::fs::create_dir(place.join("below")).expect("its own directory");
    place.write("below/b.yml", "lisen: []\n");
    place.write("below/notes.txt", "not: [a configuration\n");
    let directory = place.path().to_str().expect("ASCII");
    ends(&["check", directory], 1, "a.yaml is valid");
    ends(&["check", directory], 1, "below/b.yml is not valid: 1 fault");
    place.write(".c.yaml", "lisen: []\n");
    let checked = run(&["check", directory]);
    assert!(!String::from_utf8_lossy(&checked.stderr).contains(".c.yaml"), "{checked:?}");
    let empty = TempDir::new();
    ends(&["check", empty.path().to_str().expect("ASCII")], 1, "no file to check");
    for (text, code, says) in [(FILE, 0, "standard input is valid"), ("lisen: []\n", 1, "standard input:1:1: lisen:")] {
        let mut check = Command::new(env!("CARGO_BIN_EXE_weir"));
        let mut check =
            check.args(["check", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
        check.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
        let output = check.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(says), "{said}");
    }
}

#[test]
fn check_of_the_file_of_a_controller_reads_the_files_that_it_names() {
    let place = TempDir::new();
    let authority = Authority::of_tests();
    let (own, other) = (authority.identity(&["controller"]), authority.identity(&["other"]));
    for (name, content) in
        [("a.crt", &own.certificate), ("a.key", &own.key), ("b.key", &other.key), ("ca.crt", &authority.certificate)]
    {
        place.write(name, content);
    }
    place.write("kubeconfig", "");
    let check = |key: &str, kubeconfig: &str, code: i32, says: &str| {
        let tls = format!("tls: {{ cert: a.crt, key: {key}, ca: ca.crt }}");
        let file =
            place.write("k.yaml", format!("controller: {{ kubernetes: {{ kubeconfig: {kubeconfig} }}, {tls} }}\n"));
        ends(&["check", file.to_str().expect("ASCII")], code, says);
    };
    check("a.key", "kubeconfig", 0, "k.yaml is valid");
    check("b.key", "kubeconfig", 1, "k.yaml:1:60: controller.tls: `b.key` ");
    check("b.key", "kubeconfig", 1, "is not the key of this certificate");
    check("a.key", "none", 1, "controller.kubernetes.kubeconfig: the file `none` cannot be read: No such file");
}

/// The advice must not open a door: to leave out what was to ask for a token.
#[test]
fn check_names_the_plugin_that_does_what_others_call_differently() {
    let place = TempDir::new();
    for (theirs, advice) in [
        ("jwt", "Weir's plugin for this is `jwt-auth`"),
        ("rate-limiting", "Weir's plugin for this is `limit-count`"),
        ("bot-detection", "Weir's plugin for this is `ua-restriction`"),
        ("magic", "`weir plugins` lists all plugins"),
    ] {
        let routes = format!("routes: [{{ uri: /*, plugins: {{ {theirs}: {{}} }} }}]\n");
        let file = place.write("weir.yaml", format!("listen: [\"127.0.0.1:0\"]\n{routes}"));
        ends(&["check", file.to_str().expect("ASCII")], 1, &format!("this version has no plugin `{theirs}`; {advice}"));
    }
}

#[test]
fn check_writes_formats_that_programs_read_and_may_refuse_warnings() {
    let place = TempDir::new();
    let bad = place.write("bad.yaml", "lisen: []\n");
    let bad = bad.to_str().expect("ASCII");
    let printed = |arguments: &[&str]| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let json: Value = serde_json::from_str(&printed(&["check", "--format", "json", bad])).expect("JSON");
    assert_eq!(json["files"], json!([{"file": bad, "valid": false}]));
    let finding = &json["findings"][0];
    assert_eq!(
        (&finding["severity"], &finding["line"], &finding["path"]),
        (&json!("error"), &json!(1), &json!("lisen"))
    );
    let github = printed(&["check", "--format", "github", bad]);
    assert!(github.starts_with(&format!("::error file={bad},line=1,col=1::lisen: ")), "{github}");
    let sarif: Value = serde_json::from_str(&printed(&["check", "--format", "sarif", bad])).expect("JSON");
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(result["level"], "error");
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 1);
    // An upstream over TLS that does not say whether it is verified is warned of.
    let warned = place.write(
        "warned.yaml",
        "listen: [\"127.0.0.1:0\"]\nroutes: [{ uri: /*, upstream: { scheme: https, nodes: { \"127.0.0.1:1\": 1 } } }]\n",
    );
    let warned = warned.to_str().expect("ASCII");
    ends(&["check", warned], 0, "warned.yaml is valid");
    ends(&["check", "--deny-warnings", warned], 1, "--deny-warnings rejects 1 warning");
}

#[test]
fn diff_of_two_files_names_the_requests_that_are_handled_differently() {
    let place = TempDir::new();
    let path = |name: &str, content: &str| place.write(name, content).to_str().expect("ASCII").to_owned();
    let of = |first: &str, node: &str, timeout: u32, websocket: bool| {
        let upstream = |node: &str| format!("upstream: {{ nodes: {{ \"{node}:80\": 1 }} }}");
        format!(
            "{FILE_HEAD}services: [{{ id: s, enable_websocket: {websocket}, {same} }}]\n\
             routes:\n{first}- {{ uri: /same, {same} }}\n- {{ id: a, uri: /a, plugins: {{ cors: {{}} }}, {changed} }}\n\
             - {{ id: t, uri: /t, request_timeout: {timeout}, {same} }}\n\
             - {{ id: w, uri: /w, service_id: s }}\n",
            same = upstream("127.0.0.1"),
            changed = upstream(node)
        )
    };
    let before = path("before.yaml", &of("", "10.0.0.1", 5, true));
    // The first route moves the next one, which has no id, to another place.
    let new = "- { uri: /new, plugins: { mocking: { response_example: new } } }\n";
    let after = path("after.yaml", &of(new, "10.0.0.2", 6, false));
    let requests = ["same", "a", "t", "w", "new", "none"].map(|path| format!("GET http://t/{path}\n")).concat();
    let requests = path("requests", &requests);
    let diff = |before: &str, after: &str, code: i32| {
        let output = run(&["diff", before, after, "--requests", &requests]);
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(
        diff(&before, &after, 1),
        "6 different requests compared, 4 handled differently\n  \
         GET http://t/a: upstream routes/a has other settings\n  \
         GET http://t/t: route t has other settings\n  \
         GET http://t/w: route w has other settings\n  \
         GET http://t/new: route none -> arr_1; plugins none -> [mocking from route/arr_1]\n"
    );
    assert_eq!(diff(&after, &after, 0), "6 different requests compared, 0 handled differently\n");
    let bad = path("bad.yaml", "lisen: []\n");
    ends(&["diff", &before, &bad, "--requests", &requests], 1, "bad.yaml:1:1: lisen:");
    let bare = |before: &str, after: &str, code: i32| {
        let output = run(&["diff", before, after]);
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(
        bare(&before, &after, 1),
        "changed routes/a\n  upstream.nodes.10.0.0.1:80: 1 -> null\n  upstream.nodes.10.0.0.2:80: null -> 1\n\
         created routes/arr_1\nchanged routes/t\n  request_timeout: 5 -> 6\nchanged services/s\n  \
         enable_websocket: true -> false\n"
    );
    assert_eq!(bare(&after, &after, 0), "no changes\n");
    let more = path("more.yaml", &format!("{}worker_shutdown_timeout: 3\n", of("", "10.0.0.1", 5, true)));
    assert_eq!(bare(&before, &more, 1), "changed setting worker_shutdown_timeout\n");
    ends(&["diff", &before, &bad], 1, "bad.yaml:1:1: lisen:");
    ends(&["diff", &before, "--requests", &requests], 2, "2 values required");
    ends(&["diff"], 2, "--file <FILE>");
}

#[test]
fn explain_says_where_a_request_goes() {
    let place = TempDir::new();
    let routes = "routes: [{ id: a, uri: /a/*, plugins: { key-auth: {}, cors: {} } }, { id: b, uri: /*, plugins: {} }]";
    let file = place.write("good.yaml", format!("{}{routes}", FILE.replace("routes: []\n", "")));
    let file = file.to_str().expect("ASCII");
    let output = run(&["explain", file, "GET", "http://t/a/b", "-H", "X-A: b"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("route/a /a/* chosen") && words.contains("route/b /* outranked"), "{said}");
    let price = |name: &str| {
        let page = include_str!("../../docs/reference/prices.md");
        let row = page.lines().find_map(|line| line.strip_prefix(&format!("| `{name}` | "))).expect("it has a price");
        format!("from route/a: {} user instructions, calibrated", row.split(' ').next().unwrap_or_default())
    };
    let chain = format!("4000 cors {} rewrite 2500 key-auth {}", price("cors"), price("key-auth"));
    assert!(words.contains(&chain), "{said}");
    ends(&["explain", file, "GET", "gopher://t/"], 1, "neither http nor https");
}

#[test]
fn explain_names_the_upstream_and_the_path_with_another_last_slash() {
    let place = TempDir::new();
    let routes = "services: [{ id: s, upstream_id: u }]\nupstreams: [{ id: u, nodes: { \"127.0.0.1:1\": 1 } }]\n\
                  routes: [{ id: a, uri: /a/*, service_id: s }, { id: b, uri: /b, service_id: s }]\n";
    let file = place.write("good.yaml", format!("{FILE_HEAD}{routes}"));
    let file = file.to_str().expect("ASCII");
    let told = |path: &str| String::from_utf8_lossy(&run(&["explain", file, "GET", path]).stdout).into_owned();
    assert!(told("/a/b").contains("\nUpstream: upstreams/u\n"), "{}", told("/a/b"));
    let missed = "No route matches; the answer is 404.\nThe path";
    for (path, near) in
        [("/a?x=1", "`/a/`, which differs by its last slash, is that of route/a."), ("/b/", "`/b`, which")]
    {
        assert!(told(path).starts_with(&format!("{missed} {near}")), "{path}: {}", told(path));
    }
    assert_eq!(told("/c"), "No route matches; the answer is 404.\n");
}

#[test]
fn explain_and_diff_know_the_upstreams_that_traffic_split_chooses() {
    let place = TempDir::new();
    let of = |node: &str| {
        format!(
            "{FILE_HEAD}upstreams:\n- {{ id: v1, nodes: {{ \"127.0.0.1:1\": 1 }} }}\n- {{ id: v2, nodes: {{ \"{node}\": 1 }} }}\n\
             routes:\n- id: a\n  uri: /a\n  upstream_id: v1\n  plugins: {{ traffic-split: {{ rules: [{{ weighted_upstreams: \
             [{{ upstream_id: v2, weight: 5 }}, {{ weight: 95 }}] }}] }} }}\n- {{ id: b, uri: /b, plugins: {{ request-id: {{}} }} }}\n"
        )
    };
    let path = |name: &str, content: &str| place.write(name, content).to_str().expect("ASCII").to_owned();
    let (before, after) = (path("before.yaml", &of("127.0.0.1:2")), path("after.yaml", &of("127.0.0.1:3")));
    let told = |path: &str| String::from_utf8_lossy(&run(&["explain", &before, "GET", path]).stdout).into_owned();
    let split = told("/a");
    assert!(split.contains("\nUpstream: upstreams/v1, unless `traffic-split` chooses another\n"), "{split}");
    assert!(split.contains("from route/a (uses upstreams/v2)"), "{split}");
    let none = told("/b");
    assert!(none.contains("\nUpstream: none; a request that no plugin answers gets 503 (`no_upstream`)\n"), "{none}");
    let requests = path("requests", "GET http://t/a\nGET http://t/b\n");
    let output = run(&["diff", &before, &after, "--requests", &requests]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "2 different requests compared, 1 handled differently\n  \
         GET http://t/a: upstreams of plugins [upstreams/v2] has other settings\n"
    );
}

#[test]
fn explain_says_what_a_request_over_tls_meets_before_its_route() {
    let place = TempDir::new();
    let authority = Authority::of_tests();
    let files = |name: &str| {
        let identity = authority.identity(&[name]);
        place.write(&format!("{name}.pem"), identity.certificate);
        place.write(&format!("{name}.key"), identity.key);
        format!("cert: {name}.pem, key: {name}.key")
    };
    let (shop, bank) = (files("shop.test"), files("bank.test"));
    place.write("ca.pem", &*authority.certificate);
    let file = place.write(
        "good.yaml",
        format!(
            "{FILE_HEAD}ssls:\n- {{ sni: shop.test, {shop} }}\n- {{ sni: bank.test, {bank}, client: {{ ca: ca.pem }} }}\n\
             routes: [{{ uri: /*, plugins: {{}} }}]\n"
        ),
    );
    let file = file.to_str().expect("ASCII");
    let told = |arguments: &[&str]| {
        let output = run(&[&["explain", file, "GET"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("chosen"), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said.lines().next().unwrap_or_default().to_owned()
    };
    for (arguments, first) in [
        (&["https://shop.test/"][..], "Routes whose path matches:"),
        (&["http://none.test/"][..], "Routes whose path matches:"),
        (&["https://none.test/"][..], "No entry of `ssls` has a certificate for the server name `none.test`"),
        (
            &["https://127.0.0.1/", "-H", "Host: shop.test"][..],
            "No entry of `ssls` has a certificate for the server name `*`",
        ),
        (
            &["https://shop.test/", "--sni", "none.test"][..],
            "No entry of `ssls` has a certificate for the server name `none.test`",
        ),
        (&["https://none.test/", "--sni", "shop.test"][..], "Routes whose path matches:"),
        (&["https://bank.test/"][..], "The client needs a certificate of its own"),
        (
            &["https://bank.test/", "--sni", "shop.test"][..],
            "The answer is 421: the handshake named `shop.test`, and the request is for `bank.test`",
        ),
    ] {
        let said = told(arguments);
        assert!(said.starts_with(first), "{arguments:?}: {said}");
    }
    ends(&["explain", file, "GET", "http://a/", "--sni", "b"], 1, "write the URL with `https://`");
}

#[test]
fn explain_says_which_plugins_are_not_reached() {
    let place = TempDir::new();
    let limit = "limit-count: { count: 2, time_window: 60 }";
    for (answering, is_told) in [
        ("mocking: { response_example: a }", true),
        ("mocking: { response_example: a, delay: 1 }", true),
        ("redirect: { uri: /b }", true),
        ("fault-injection: { abort: { http_status: 503 } }", true),
        ("fault-injection: { delay: { duration: 1 }, abort: { http_status: 503 } }", true),
        ("fault-injection: { abort: { http_status: 503, percentage: 50 } }", false),
        ("mocking: { response_example: a, _meta: { filter: [[uri, '==', /b]] } }", false),
        ("redirect: { http_to_https: true }", false),
    ] {
        let routes = format!("routes: [{{ uri: /*, plugins: {{ {answering}, {limit}, key-auth: {{}} }} }}]\n");
        let file = place.write("good.yaml", format!("{FILE_HEAD}{routes}"));
        let output = run(&["explain", file.to_str().expect("ASCII"), "/a"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = |name: &str| said.lines().find(|line| line.contains(name)).unwrap_or_default();
        assert_eq!(line(" limit-count ").contains("(not reached by requests: `"), is_told, "{answering}: {said}");
        let name = answering.split(':').next().unwrap_or_default();
        assert!(!line(&format!(" {name} ")).contains("not reached"), "{answering}: {said}");
    }
}

#[test]
fn explain_says_how_a_method_and_a_path_are_written() {
    let place = TempDir::new();
    let file = place.write("good.yaml", FILE);
    let file = file.to_str().expect("ASCII");
    ends(&["explain", file, "get", "/x"], 1, "methods are in capital letters: `GET`");
    ends(&["explain", file, "orders"], 1, "write `/orders` or `http://orders/`");
}

#[test]
fn records_of_a_directory_without_records_are_told_apart_from_no_directory() {
    let place = TempDir::new();
    ends(&["records", place.path().to_str().expect("ASCII")], 1, "holds no log records");
    ends(&["records", place.join("none").to_str().expect("ASCII")], 1, "give the `data_dir` of a node");
}

#[test]
fn plugins_says_what_there_is_and_what_it_takes() {
    let said = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let list = said(&["plugins"]);
    assert!(words(&list).contains("cors rewrite 4000 Lets browsers use a route from pages of other origins"), "{list}");
    let page = said(&["plugins", "limit-count"]);
    for part in [
        "Stage: access. Priority: 1002;",
        "  limit-count: { count: 100,",
        "  window_type (`fixed` or `sliding`; default \"fixed\")",
        "  rejected_code (integer, 200 to 599; default 503)",
        "  rules[].key (string; required)",
        "Options in `plugin_metadata`",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert!(said(&["plugins", "key-auth"]).contains("Options in a consumer:"));

    let schema = said(&["plugins", "limit-count", "--schema"]);
    assert!(schema.contains("\"$schema\": \"https://json-schema.org/draft/2020-12/schema\""), "{schema}");
    assert!(said(&["plugins", "key-auth", "--schema=consumer"]).contains("\"key\""));
    ends(&["plugins", "cors", "--schema=consumer"], 2, "`cors` is not an auth plugin");
    ends(&["plugins", "limit-cuont"], 2, "no plugin `limit-cuont`; did you mean `limit-count`?");
    ends(&["plugins", "zebra"], 2, "no plugin `zebra`; `weir plugins` lists the plugins");
    ends(&["plugins", "--schema"], 2, "<NAME>");
}

#[test]
fn wrong_usage_ends_with_2() {
    ends(&["rnu"], 2, "unrecognized subcommand");
    ends(&["run"], 2, "<FILE>");
    ends(&["run", "weir.yaml", "--upgrade-timeout", "0"], 2, "must be more than zero");
}

#[test]
fn an_address_in_use_ends_with_3() {
    let place = TempDir::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let addr = taken.local_addr().expect("it is bound");
    let listen = place.write("listen.yaml", FILE.replace("127.0.0.1:0", &addr.to_string()));
    ends(&["run", listen.to_str().expect("ASCII")], 3, &format!("cannot listen on {addr}: "));
    let status = place.write("status.yaml", FILE.replace("status: false", &format!("status: \"{addr}\"")));
    ends(&["run", status.to_str().expect("ASCII")], 3, &format!("weir: cannot listen on {addr}: "));
}

#[test]
fn two_gateways_do_not_share_a_port_by_accident() {
    let origin = origin();
    let first = weir().start(&routes(&origin));
    let place = TempDir::new();
    let file = place.write("weir.yaml", FILE.replace("127.0.0.1:0", &first.addr().to_string()));
    ends(&["run", file.to_str().expect("ASCII")], 3, "stop the process that listens there");
}

#[test]
fn a_log_that_cannot_be_opened_ends_with_4() {
    let place = TempDir::new();
    let file = place.write("weir.yaml", format!("enable_access_log: /nowhere/access.log\n{FILE}"));
    ends(&["run", file.to_str().expect("ASCII")], 4, "the access log /nowhere/access.log cannot be opened");
}

#[test]
fn command_prints_its_version_completions_and_manual() {
    let text = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let of_build = if cfg!(debug_assertions) { " (not optimised)" } else { "" };
    let version = format!("weir {}{of_build}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((text(&["version"]), text(&["--version"])), (version.clone(), version));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(text(&["completions", shell]).contains("upgrade-timeout"), "{shell}");
    }
    assert!(text(&["man"]).contains(".TH weir 1"));
    assert!(text(&["man", "run"]).contains("SIGUSR2"));
    assert!(text(&["--help"]).contains("Exit codes"));
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    for arguments in
        [&["bench", "list"][..], &["bench", "schema", "scenario"], &["plugins"], &["version"], &["completions", "bash"]]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn signals_end_it_in_order_and_with_0() {
    let origin = origin();
    for signal in [Signal::TERM, Signal::QUIT, Signal::INT] {
        let mut gateway = weir().start(&routes(&origin));
        assert_eq!(gateway.get("/a").text(), "GET /a 0");
        gateway.signal(signal);
        assert!(gateway.wait_exit(DEADLINE).success(), "{signal:?}");
    }
}

#[test]
fn sigint_does_not_wait_for_what_was_begun() {
    let origin = origin();
    let mut gateway = weir().start(&routes(&origin));
    let mut events = crate::load::Events::open(gateway.addr());
    events.next().expect("an event");
    gateway.signal(Signal::TERM);
    eventually("it drains", DEADLINE, || gateway.ask_status("/status/ready").status == 503);
    assert!(!gateway.has_exited());
    gateway.signal(Signal::INT);
    assert!(gateway.wait_exit(DEADLINE).success());
}

#[test]
fn f30_clients_that_wait_to_be_accepted_are_served_before_the_end() {
    let origin = origin();
    let mut gateway = weir().start(&format!("worker_processes: 2\n{}", routes(&origin)));
    // While it stands still the kernel takes connections in its place.
    gateway.signal(Signal::STOP);
    let mut clients: Vec<_> = (0..50).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send("GET /waiting HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    gateway.signal(Signal::TERM);
    gateway.signal(Signal::CONT);
    for client in &mut clients {
        let answer = client.response().expect("it was there before the signal");
        assert_eq!(answer.text(), "GET /waiting 0");
    }
    assert!(gateway.wait_exit(DEADLINE).success());
}
