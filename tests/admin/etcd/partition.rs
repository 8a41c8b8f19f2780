//! A network partition: the members of etcd are on two sides, and packets between the sides disappear.

use std::slice;
use std::time::Instant;

use serde_json::Value;
use weir_testkit::{DEADLINE, Gateway, NetworkSide, SplitNetwork, TempDir, eventually};

use super::{CONVERGENCE, Etcd, Traffic, mocking, serves};
use crate::api::Api;
use crate::weir;

/// Changes made on the majority's side while the network is cut.
const CHANGES: usize = 20;

/// One member and a node on the left, two members and a node on the right.
struct SplitCluster {
    network: SplitNetwork,
    etcd: Etcd,
    minority: Gateway,
    majority: Gateway,
    _directories: [TempDir; 2],
}

impl SplitCluster {
    fn start() -> Option<SplitCluster> {
        let network = SplitNetwork::new()?;
        let sides = [NetworkSide::Left, NetworkSide::Right, NetworkSide::Right];
        let mut etcd = Etcd::at(&sides.map(SplitNetwork::address))?;
        sides.into_iter().enumerate().for_each(|(member, side)| network.within(side, || etcd.start(member)));
        network.within(NetworkSide::Right, || etcd.wait());
        let directories = [TempDir::new(), TempDir::new()];
        let node = |side: NetworkSide| network.within(side, || weir().start(&etcd.node(&directories[side as usize])));
        let (minority, majority) = (node(NetworkSide::Left), node(NetworkSide::Right));
        Some(SplitCluster { network, etcd, minority, majority, _directories: directories })
    }

    fn left<T>(&self, act: impl FnOnce(&Gateway) -> T) -> T {
        self.network.within(NetworkSide::Left, || act(&self.minority))
    }

    fn right<T>(&self, act: impl FnOnce(&Gateway) -> T) -> T {
        self.network.within(NetworkSide::Right, || act(&self.majority))
    }

    /// Makes a member the leader.
    fn lead(&self, member: usize) {
        self.right(|_| {
            let all = self.etcd.ctl(&["member", "list"]);
            let is_member = |line: &&str| line.contains(&format!(", m{member}, "));
            let line = all.lines().find(is_member).unwrap_or_else(|| panic!("no member {member}: {all}"));
            let id = line.split(',').next().unwrap_or_default();
            eventually("it leads", DEADLINE, || self.etcd.try_ctl(&["move-leader", id]).is_some());
        });
    }
}

/// The routes of a node, as its Admin API shows them.
fn routes(gateway: &Gateway) -> Value {
    Api::of(gateway).get("routes")["list"].clone()
}

/// Cuts the network, makes changes on both sides, and joins it again.
fn cut_and_join(cluster: &SplitCluster, name: &str) {
    let before = format!("before the cut, {name}");
    // A member that has just been led anew may not know its leader yet.
    cluster.right(|node| {
        eventually("a change before the cut", CONVERGENCE, || {
            matches!(Api::of(node).ask("PUT", "routes/r?wait=60s", "", &mocking(&before)).status, 200 | 201)
        });
    });
    cluster.network.cut(true);
    let began = Instant::now();
    let path = |number: usize| format!("/{}-{number}", name.replace(' ', "-"));
    for number in 0..CHANGES {
        let path = path(number);
        let body = mocking(&path).replace("/r\"", &format!("{path}\""));
        cluster.right(|node| {
            eventually("the majority makes a change", CONVERGENCE, || {
                matches!(Api::of(node).ask("PUT", &format!("routes{path}"), "", &body).status, 200 | 201)
            });
        });
    }
    println!("{name}: the majority has made {CHANGES} changes after {:.1?}", began.elapsed());
    cluster.left(|node| {
        let refused = Api::of(node).ask("PUT", "routes/refused", "", &mocking("refused").replace("/r\"", "/refused\""));
        assert_eq!(refused.status, 503, "{}", refused.text());
        let told = refused.text();
        println!("{name}: the minority answers {told}");
        // The member may not know yet that it is alone, or know it when it is asked.
        let says_so = ["the change was not made", "it is not known whether the change was made"];
        assert!(told.contains("etcd http://") && says_so.iter().any(|one| told.contains(one)), "{told}");
        assert!(serves(node, "/r", &before), "it serves the last good configuration");
        assert_eq!(node.get("/refused").status, 404, "what was refused is not served");
    });

    cluster.network.cut(false);
    let began = Instant::now();
    let has_all = |node: &Gateway| (0..CHANGES).all(|number| serves(node, &path(number), &path(number)));
    cluster.left(|node| eventually("the minority follows", CONVERGENCE, || has_all(node)));
    println!("{name}: the minority serves all changes {:.1?} after the cable was joined", began.elapsed());
    cluster.left(|node| {
        eventually("the minority makes a change", CONVERGENCE, || {
            matches!(Api::of(node).ask("PUT", "routes/r", "", &mocking(name)).status, 200 | 201)
        });
    });
    cluster.right(|node| eventually("the other side serves it", CONVERGENCE, || serves(node, "/r", name)));
    assert!(cluster.right(has_all), "no acknowledged change is lost");
    eventually("both nodes have the same routes", DEADLINE, || cluster.left(routes) == cluster.right(routes));
}

#[test]
fn a_partition_costs_no_request_and_no_acknowledged_change() {
    let Some(cluster) = SplitCluster::start() else { return };
    let steady = mocking("steady").replace("/r\"", "/steady\"");
    cluster.right(|node| Api::of(node).put("routes/steady?wait=60s", &steady));
    let traffic = [
        cluster.left(|node| Traffic::of(slice::from_ref(node), "/steady")),
        cluster.right(|node| Traffic::of(slice::from_ref(node), "/steady")),
    ];
    for (leader, name) in [(0, "leader in the minority"), (1, "leader in the majority")] {
        cluster.lead(leader);
        cut_and_join(&cluster, name);
    }
    let served: usize = traffic.into_iter().map(Traffic::end).sum();
    println!("{served} requests served beside it");
    assert!(served > 0);
}
