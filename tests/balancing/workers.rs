//! Connections are spread over workers.

use weir_testkit::{Client, DEADLINE, eventually};

use crate::{named, one_route, weir};

#[test]
fn ten_connections_on_two_workers_are_five_and_five() {
    let origins = [named("origin")];
    let gateway = weir().start(&format!("worker_processes: 2\n{}", one_route(&origins, "type: roundrobin")));
    let open = || -> Vec<u64> {
        let status = gateway.status();
        let workers = status["workers"].as_array().expect("a list").iter();
        workers.map(|worker| worker["connections"].as_u64().expect("a number")).collect()
    };
    for _ in 0..5 {
        let mut clients: Vec<Client> = (0..10)
            .map(|_| {
                let mut client = gateway.client();
                assert_eq!(client.get("/").expect("an answer").status, 200);
                client
            })
            .collect();
        assert_eq!(open(), [5, 5]);
        for client in &mut clients {
            assert_eq!(client.get("/").expect("an answer").status, 200, "it goes on wherever it is");
        }
        drop(clients);
        eventually("all have gone", DEADLINE, || open() == [0, 0]);
    }
}
