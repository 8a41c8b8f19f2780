//! The network between the clients and the targets.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::behaviour::parse_duration;

/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// A network between the clients on one side, and the targets with their backends on the other. The lab makes it: a network namespace
/// for the targets and backends, and a link that delays and loses packets (netem, or the lab itself where
/// the kernel has none). Needs root, `ip` and `tc`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Network")]
pub struct NetworkSettings {
    /// How much longer each packet takes, in each direction, such as `10ms`: a round trip takes twice as long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// The share of packets that are lost, in each direction, such as `0.1%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
}

impl NetworkSettings {
    /// The delay, or what would be right.
    pub fn delay(&self) -> Result<Duration, String> {
        let Some(text) = &self.delay else { return Ok(Duration::ZERO) };
        let wrong = || format!("network.delay: \"{text}\" is not a time of at most 10s; try 10ms");
        parse_duration(text).filter(|delay| *delay <= LONGEST_DELAY).ok_or_else(wrong)
    }

    /// The lost share in percent, or what would be right.
    pub fn loss_percent(&self) -> Result<f64, String> {
        let Some(text) = &self.loss else { return Ok(0.0) };
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let wrong = || format!("network.loss: \"{text}\" is not a share from 0% to 100%; try 0.1%");
        number.filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(wrong)
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = [self.delay().err(), self.loss_percent().err()].into_iter().flatten().collect();
        if self.delay.is_none() && self.loss.is_none() {
            problems.push("network: give `delay`, `loss` or both".to_owned());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(delay: &str, loss: &str) -> NetworkSettings {
        NetworkSettings { delay: Some(delay.to_owned()), loss: Some(loss.to_owned()) }
    }

    #[test]
    fn delays_are_times_and_losses_are_shares() {
        let good = network("10ms", "0.1%");
        assert_eq!((good.delay(), good.loss_percent()), (Ok(Duration::from_millis(10)), Ok(0.1)));
        assert!(good.problems().is_empty());
        let problems = network("ten", "101%").problems().join("\n");
        assert!(problems.contains("try 10ms") && problems.contains("try 0.1%"), "{problems}");
        assert!(network("11s", "1").problems().len() == 2);
        assert_eq!(NetworkSettings::default().problems(), ["network: give `delay`, `loss` or both"]);
    }
}
