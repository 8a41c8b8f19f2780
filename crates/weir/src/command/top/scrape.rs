//! Reads a node's `/metrics`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use weir_client::{CallSettings, HttpClient, HttpClientSettings, ServiceUrl};

/// The most bytes of a response: that of a node with some ten thousand routes.
const MOST_BYTES: usize = 1 << 30;
/// The time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A client of a node's status address.
pub(super) struct StatusClient {
    pub address: String,
    url: ServiceUrl,
    http: HttpClient,
    settings: CallSettings,
    runtime: tokio::runtime::Runtime,
}

impl StatusClient {
    pub(super) fn new(address: &str) -> Result<StatusClient, String> {
        let url = format!("http://{address}/metrics");
        let url = ServiceUrl::parse(&url).map_err(|error| format!("--status: {address}: {error}"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let settings = CallSettings { max_content_bytes: MOST_BYTES, timeout: TIMEOUT, ..CallSettings::default() };
        Ok(StatusClient {
            address: address.to_owned(),
            url,
            http: HttpClient::new(HttpClientSettings::default()),
            settings,
            runtime: runtime.map_err(|error| format!("the async runtime cannot be started: {error}"))?,
        })
    }

    pub(super) fn scrape(&self) -> Result<Scrape, String> {
        let request = Request::get(self.url.target().as_str()).body(Bytes::new());
        let request = request.map_err(|error| format!("the request cannot be built: {error}"))?;
        let answer = self.runtime.block_on(self.http.call(&self.url, request, &self.settings));
        let answer = answer.map_err(|error| {
            format!("no response from {}: {error}; `--status` is the setting `status` of the node", self.address)
        })?;
        if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
            return Err(format!("{} is too busy to answer; try again later", self.address));
        }
        if !answer.status().is_success() {
            return Err(format!(
                "{} answered with {}; it is not the status address of a node; `--status` is the setting `status` of the node",
                self.address,
                answer.status()
            ));
        }
        Ok(Scrape::parse(&String::from_utf8_lossy(answer.body()), Instant::now()))
    }
}

/// The labels of a series, by name.
pub(super) type LabelValues = BTreeMap<String, String>;

/// All series at one time.
pub(super) struct Scrape {
    pub at: Instant,
    series: BTreeMap<String, Vec<(LabelValues, f64)>>,
}

impl Scrape {
    pub(super) fn parse(text: &str, at: Instant) -> Scrape {
        let mut series: BTreeMap<String, Vec<(LabelValues, f64)>> = BTreeMap::new();
        for (name, labels, value) in text.lines().filter_map(sample) {
            series.entry(name).or_default().push((labels, value));
        }
        Scrape { at, series }
    }

    pub(super) fn add(&mut self, name: &str, labels: &LabelValues, value: f64) {
        match self.series.get_mut(name) {
            Some(series) => series.push((labels.clone(), value)),
            None => drop(self.series.insert(name.to_owned(), vec![(labels.clone(), value)])),
        }
    }

    pub(super) fn of(&self, name: &str) -> &[(LabelValues, f64)] {
        self.series.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of the series that have these labels.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has_all = |of: &LabelValues| labels.iter().all(|(name, value)| of.get(*name).is_some_and(|is| is == value));
        self.of(name).iter().filter(|(of, _)| has_all(of)).map(|(_, value)| value).sum()
    }
}

/// Parses one line: a name, labels in braces, and a value.
fn sample(line: &str) -> Option<(String, LabelValues, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let Some((name, rest)) = line.split_once('{') else {
        let (name, value) = line.split_once(' ')?;
        return Some((name.to_owned(), LabelValues::new(), value.trim().parse().ok()?));
    };
    let mut labels = LabelValues::new();
    let mut rest = rest;
    while !rest.starts_with('}') {
        let (label, value) = rest.split_once("=\"")?;
        let (value, after) = quoted(value)?;
        labels.insert(label.to_owned(), value);
        rest = after.trim_start_matches(',');
    }
    Some((name.to_owned(), labels, rest[1..].trim().parse().ok()?))
}

/// The text up to the next unescaped quote, and the rest after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_their_labels() {
        let text =
            "# HELP a b\na 1\nb{x=\"1\",y=\"q\\\"\\\\\\n}\"} 2.5\nb{x=\"2\"} 4\nbroken{x=\"1\nnothing\nb{x=\"2\",} 1\n";
        let scrape = Scrape::parse(text, Instant::now());
        assert_eq!((scrape.sum("a", &[]), scrape.sum("b", &[]), scrape.sum("b", &[("x", "2")])), (1.0, 7.5, 5.0));
        assert_eq!(scrape.of("b")[0].0["y"], "q\"\\\n}");
        assert!(scrape.of("broken").is_empty() && scrape.of("nothing").is_empty());
    }
}
