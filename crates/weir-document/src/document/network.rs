//! Networks as settings state them.

use ipnet::IpNet;
use weir_plugin::vars::parse_network;

use crate::text::read::{NodeReader, shortened};

/// An address, or a range of addresses in CIDR notation.
pub(super) fn network(at: &NodeReader, text: &str) -> Option<IpNet> {
    let network = parse_network(text);
    if network.is_none() {
        let problem = format!("`{}` is neither an address nor a range", shortened(text));
        at.report_advising(problem, "write as `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`");
    }
    network
}
