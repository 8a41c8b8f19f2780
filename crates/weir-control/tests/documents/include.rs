//! Files that a configuration includes.

use weir_control::{DocumentLoader, check_file};
use weir_testkit::TempDir;

use crate::plugins;

/// What `weir check` says of `weir.yaml`, without the name of the directory.
fn found(place: &TempDir) -> Vec<String> {
    let diagnostics = match check_file(&place.join("weir.yaml"), &plugins::REGISTRY) {
        Ok(warnings) => warnings,
        Err(faults) => faults,
    };
    let directory = format!("{}/", place.join("").display()).replace("//", "/");
    diagnostics.iter().map(|diagnostic| diagnostic.to_string().replace(&directory, "")).collect()
}

fn ids(place: &TempDir) -> Vec<String> {
    let loaded = DocumentLoader::of_file_directly(place.join("weir.yaml")).read().expect("it can be parsed");
    assert_eq!(loaded.document.faults, []);
    loaded.document.routes.iter().map(|route| route.id.to_string()).collect()
}

fn write(place: &TempDir, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = place.join(name);
        std::fs::create_dir_all(path.parent().expect("it is in a directory")).expect("a directory");
        std::fs::write(path, text).expect("it can be written");
    }
}

#[test]
fn files_patterns_and_directories_add_their_resources_in_order() {
    let place = TempDir::new();
    write(
        &place,
        &[
            (
                "weir.yaml",
                "include: [one.yaml, routes/*.yaml, teams]\nroutes: [{ id: own, uri: /own, service_id: s }]\n",
            ),
            (
                "one.yaml",
                "services: [{ id: s, upstream: { nodes: { 'a:1': 1 } } }]\nroutes:\n- { id: one, uri: /one, service_id: s }\n#END\n",
            ),
            ("routes/b.yaml", "routes: [{ id: b, uri: /b, upstream: { nodes: { 'a:1': 1 } } }]"),
            ("routes/a.yaml", "routes: [{ id: a, uri: /a, upstream: { nodes: { 'a:1': 1 } } }]"),
            ("routes/c.yml", "not: read"),
            ("routes/.d.yaml", "not: read"),
            ("teams/x/deep.json", r#"{"routes": [{"id": "deep", "uri": "/deep", "upstream": {"nodes": {"a:1": 1}}}]}"#),
            ("teams/y.yml", "include: further.txt"),
            ("teams/further.txt", "routes: [{ id: further, uri: /further, upstream: { nodes: { 'a:1': 1 } } }]"),
            ("teams/notes.txt", "not: read"),
        ],
    );
    assert_eq!(ids(&place), ["own", "one", "a", "b", "deep", "further"]);
    assert_eq!(found(&place), [""; 0]);
}

#[test]
fn faults_are_told_in_the_lines_of_their_own_file() {
    let place = TempDir::new();
    write(
        &place,
        &[
            ("weir.yaml", "include: routes\nroutes:\n- { id: own, uri: /own, upstream_id: nowhere }\n"),
            (
                "routes/a.yaml",
                "routes:\n- { id: a, uri: /a, upstream: { nodes: { 'a:1': 1 } } }\n- { id: a2, uri: 5, upstream: { nodes: { 'a:1': 1 } } }\n",
            ),
            (
                "routes/b.yaml",
                "# A comment.\nroutes:\n\n- { id: b, uri: /b,\n    plugins: { mark-early: { txt: a } } }\n",
            ),
            ("routes/c.yaml", "routes: [{ id: c, uri: /a, upstream: { nodes: { 'a:1': 1 } } }]\n"),
        ],
    );
    assert_eq!(
        found(&place),
        [
            "weir.yaml:3:38: routes[0].upstream_id: `upstreams` has no `nowhere`; add it to `upstreams`",
            "routes/a.yaml:3:18: routes[1].uri: expected text, found a number; put it in quotes",
            "routes/b.yaml:5:35: routes[0].plugins.mark-early.txt: the option `txt` is not known; did you mean `text`?",
        ]
    );
    write(
        &place,
        &[
            ("weir.yaml", "include: routes\nroutes: []\n"),
            ("routes/a.yaml", "routes:\n- { id: a, uri: /a, upstream: { nodes: { 'a:1': 1 } } }\n"),
            ("routes/b.yaml", "\n\nroutes: []\n"),
        ],
    );
    let warned = found(&place);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].starts_with("routes/c.yaml:1:24: routes[0].uri: no request with the path `/a`"), "{warned:?}");
    assert!(warned[0].contains("routes[0] in "), "{warned:?}");
    assert!(warned[0].contains("routes/a.yaml:2 takes all of them"), "{warned:?}");
}

#[test]
fn invalid_include_is_refused_with_its_place() {
    let place = TempDir::new();
    let include = |entry: &str| ("weir.yaml", format!("routes: []\ninclude:\n- {entry}\n"));
    let refused = |entry: &str, says: &[&str]| {
        let (name, text) = include(entry);
        write(&place, &[(name, &text)]);
        let found = found(&place);
        assert_eq!(found.len(), says.len(), "{entry}: {found:?}");
        for (found, says) in found.iter().zip(says) {
            assert!(found.contains(says), "{entry}: {found:?}");
        }
    };
    write(
        &place,
        &[
            ("settings.yaml", "listen: \":80\"\nrouts: []\nroutes: 5\n"),
            ("circle/a.yaml", "routes: []\ninclude: b.yaml\n"),
            ("circle/b.yaml", "include: [a.yaml]\n"),
            ("broken.yaml", "routes:\n\t- a\n"),
            ("same/a.yaml", "routes:\n- { id: x, uri: /a, upstream: { nodes: { 'a:1': 1 } } }\n"),
            (
                "same/b.yaml",
                "consumers: [{ username: x }]\nroutes:\n- { id: y, uri: /y, upstream: { nodes: { 'a:1': 1 } } }\n- { id: x, uri: /b, upstream: { nodes: { 'a:1': 1 } } }\n",
            ),
        ],
    );
    refused("nowhere.yaml", &["weir.yaml:3:3: include: `nowhere.yaml` cannot be read: No such file"]);
    refused("\"nowhere/*.yaml\"", &["weir.yaml:3:3: include: `nowhere/*.yaml` cannot be read: No such file"]);
    refused("5", &["weir.yaml:3:3: include: expected the name of a file or a directory"]);
    refused("weir.yaml", &["weir.yaml:3:3: include: `weir.yaml` includes itself, directly or by way of others"]);
    refused("circle/a.yaml", &["circle/b.yaml:1:11: include: `"]);
    refused("broken.yaml", &["broken.yaml:2:2: is not YAML"]);
    refused(
        "settings.yaml",
        &[
            "settings.yaml:1:1: listen: `listen` is not a list of resources",
            "settings.yaml:2:1: routs: `routs` is not a list of resources",
            "settings.yaml:3:9: routes: expected a list",
        ],
    );
    refused("same/a.yaml\n- same/a.yaml", &["weir.yaml:4:3: include: `"]);
    write(
        &place,
        &[(
            "twice/a.yaml",
            "routes:\n- { id: x, uri: /a, upstream: { nodes: { 'a:1': 1 } } }\n- { id: x, uri: /b, upstream: { nodes: { 'a:1': 1 } } }\n",
        )],
    );
    refused("twice", &["twice/a.yaml:3:3: routes[1]: the id `x` is already in use; twice/a.yaml:2:3 has this id"]);
    refused("same", &["same/b.yaml:4:3: routes[1]: the id `x` is already in use; same/a.yaml:2:3 has this id"]);
}

#[test]
fn a_store_and_included_resources_exclude_each_other() {
    let place = TempDir::new();
    write(&place, &[("weir.yaml", "store: embedded\ninclude: a.yaml\n"), ("a.yaml", "routes: []\n")]);
    let found = found(&place);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("weir.yaml:2:1: include: this file contains resources"), "{found:?}");
}

#[test]
fn a_text_that_is_no_file_includes_nothing() {
    let faults = weir_control::check_text("include: [a.yaml]\nroutes: []\n").expect_err("it is refused");
    assert_eq!(
        faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["text:1:10: include: files cannot be included here; write the resources themselves"]
    );
}

#[test]
fn an_id_that_is_taken_hides_no_other_fault() {
    let place = TempDir::new();
    let routes =
        "routes:\n- { id: a, uri: q, upstream: { nodes: { 'a:1': 1 } } }\n- { id: b, uri: /b, upstream_id: none }\n";
    write(
        &place,
        &[
            (
                "weir.yaml",
                "include: more.yaml\nroutes: [{ id: a, uri: /a, upstream: { nodes: { 'a:1': 1 } } }]\nconsumers: [{ username: j }]\n",
            ),
            ("more.yaml", &format!("{routes}consumers: [{{ username: j, plugins: {{ none: {{}} }} }}]\n")),
        ],
    );
    let found = found(&place);
    for says in [
        "more.yaml:2:3: routes[0]: the id `a` is already in use; weir.yaml:2:10 has this id",
        "more.yaml:4:13: consumers[0]: the id `j` is already in use; weir.yaml:3:13 has this id",
        "more.yaml:2:17: routes[0].uri: ",
    ] {
        assert_eq!(found.iter().filter(|found| found.starts_with(says)).count(), 1, "{says}: {found:?}");
    }
    assert!(!found.iter().any(|found| found.contains("again_")), "{found:?}");
}

#[test]
fn a_pattern_that_no_file_has_is_a_warning() {
    let place = TempDir::new();
    write(&place, &[("routes/.a.yaml", "routes: []\n"), ("routes/b.yaml", "routes: []\n")]);
    for (include, warns) in [("routes/*.txt", true), ("routes/?.yaml", false), ("routes", false)] {
        write(&place, &[("weir.yaml", &format!("routes: []\ninclude: [\"{include}\"]\n"))]);
        let found = found(&place);
        let says = format!("weir.yaml:2:11: include: no file is at `{include}`");
        assert_eq!(found.iter().any(|found| found.starts_with(&says)), warns, "{found:?}");
    }
}
