//! However a node came to its resources, it serves the same: changed one by one by the API, or read from a file at once.

use serde_json::{Value, json};
use weir_testkit::scaled;
use weir_testkit::timing::Random;

use crate::api::{Api, file};
use crate::weir;

const ROUTES: u64 = 12;

/// A change that may be right or wrong, alone or for what is there.
fn change(random: &mut Random, number: usize) -> (&'static str, String, String) {
    let route = format!("routes/r{}", random.number() % ROUTES);
    let other = random.number() % 4;
    let mocking = json!({"mocking": {"response_example": format!("{number}")}});
    match random.number() % 9 {
        0..=2 => {
            let priority = random.number() % 3;
            let value =
                json!({"uri": format!("/{}/*", random.number() % ROUTES), "priority": priority, "plugins": mocking});
            ("PUT", route, value.to_string())
        }
        3 => ("PUT", route, json!({"uri": format!("/s{other}"), "service_id": format!("s{other}")}).to_string()),
        4 => ("PUT", format!("services/s{other}"), json!({"plugins": mocking}).to_string()),
        5 => ("DELETE", format!("services/s{other}"), String::new()),
        6 => ("DELETE", route, String::new()),
        7 => ("PATCH", route, json!({"status": random.number() % 2}).to_string()),
        _ => ("PUT", route, json!({"uri": "no slash", "plugins": {}}).to_string()),
    }
}

#[test]
fn changes_one_by_one_come_to_what_a_file_with_all_of_them_says() {
    for round in 0..scaled(3, 30) {
        let changed = weir().start(&file());
        let mut api = Api::of(&changed);
        let mut random = Random::seeded(round as u64);
        let mut refused = 0;
        for number in 0..60 {
            let (method, path, body) = change(&mut random, number);
            refused += usize::from(api.ask(method, &path, "", &body).status >= 400);
        }
        assert!(refused > 0 && refused < 60, "some are wrong and some are right: {refused}");
        let mut text = String::new();
        for list in ["routes", "services"] {
            let found = api.get(list);
            let values: Vec<&Value> =
                found["list"].as_array().expect("a list").iter().map(|item| &item["value"]).collect();
            text.push_str(&format!("{list}: {}\n", json!(values)));
        }
        let read = weir().start(&text);
        for path in (0..ROUTES).map(|number| format!("/{number}/x")).chain((0..4).map(|number| format!("/s{number}"))) {
            let (one, other) = (changed.get(&path), read.get(&path));
            assert_eq!((one.status, one.text()), (other.status, other.text()), "round {round}: {path}");
        }
    }
}
