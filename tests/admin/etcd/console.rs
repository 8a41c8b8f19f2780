//! The console's calls on nodes that share an etcd.

use serde_json::{Value, json};
use weir_testkit::{DEADLINE, TempDir, eventually, eventually_some};

use super::{Etcd, mocking};
use crate::api::{ADMIN, Api, VIEWER, admin_addr};
use crate::sessions::log_in;
use crate::weir;

#[test]
fn a_session_is_of_one_node_and_shows_what_all_have_changed() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    let [one, two] = [0, 1].map(|node: usize| weir().start(&etcd.node(&directories[node])));
    let mut browser = log_in(admin_addr(&one), ADMIN);
    assert_eq!((&browser.told["mode"], &browser.told["can_write"]), (&json!("etcd"), &json!(true)));
    let mut elsewhere = log_in(admin_addr(&two), VIEWER);
    let cookie = format!("X-Weir-Session: {}\r\nCookie: {}\r\n", browser.token, browser.cookie);
    let asked = Api::with_key(admin_addr(&two), "no-key-at-all-of-this").ask("GET", "routes", &cookie, "");
    assert_eq!(asked.status, 401, "each node has its own sessions");

    let put = browser.ask("PUT", "/apisix/admin/routes/r1", "", &mocking("one"));
    assert_eq!(put.status, 201, "{}", put.text());
    let table = eventually_some("the route on the other node", DEADLINE, || {
        let table = elsewhere.get("/weir/v1/table/routes");
        (table["total"] == 1).then_some(table)
    });
    let revision = table["revision"].as_u64().expect("a revision");
    let same = elsewhere.get(&format!("/weir/v1/table/routes?since={revision}"));
    assert_eq!((&same["since"], &same["rows"]), (&json!(revision), &json!([])));
    // Other programs leave no history of what they delete.
    etcd.ctl(&["del", "/apisix/routes/r1"]);
    eventually("the route has gone", DEADLINE, || {
        let later = elsewhere.get(&format!("/weir/v1/table/routes?since={revision}"));
        later["since"] == Value::Null && later["total"] == 0
    });
    eventually("it is not served", DEADLINE, || {
        let told = elsewhere.ask("POST", "/weir/v1/explain", "", r#""GET http://a/r""#);
        serde_json::from_str::<Value>(&told.text()).is_ok_and(|told| told["route"].is_null())
    });
}
