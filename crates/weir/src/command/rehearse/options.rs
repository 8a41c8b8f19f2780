//! What is sent, and how.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use clap::Args;
use http::{HeaderName, HeaderValue};
use weir_rehearsal::{DifferenceCause, Distinct, Pace, RehearsalPlan, SAFE_METHODS};

/// The requests of the log that are in flight at a time, at most.
const MOST_CONCURRENCY: u64 = 64;
/// The most bytes of a body that can be compared by content: several are in memory at a time.
const MOST_BODY_BYTES: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(super) struct ReplayOptions {
    /// The methods that are sent.
    #[arg(long, value_name = "METHODS", value_delimiter = ',', default_values = SAFE_METHODS)]
    methods: Vec<String>,
    /// Sends requests of all methods, such as POST and DELETE: each changes data behind both gateways. Those that are not safe are sent
    /// once to each, and of their answers only status, type and structure are compared, since it is not known which values vary.
    #[arg(long = "unsafe", conflicts_with = "methods")]
    all_methods: bool,
    /// When requests are sent: at a rate, such as `20/s`; with the pauses of the log, but at most 100 per second, and 20 where the log has
    /// no times (`recorded`); or as fast as they are answered (`none`). Each request of the log is two for the old gateway, or up to six if there are differences.
    #[arg(long, value_name = "PACE", default_value = "20/s")]
    pace: Pace,
    /// How many times faster than the log, with `--pace recorded`.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// How many requests of the log are in flight at a time. With 1, they are sent strictly in order.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=MOST_CONCURRENCY))]
    concurrency: u64,
    /// The most requests of the log that are sent.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Sends one of this many requests, as `1/100`.
    #[arg(long, value_name = "1/COUNT", default_value = "1/1", value_parser = sample)]
    sample: u64,
    /// Sends also requests like an earlier one. Otherwise each method, host, URL, body and set of fields is sent once, whatever its
    /// `User-Agent` and `Referer` are.
    #[arg(long)]
    all: bool,
    /// The value of `Host` in place of that of the log. Where the log has none, it is the host of `--old`.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// A header field that is added to each request, as `Name: value`. Can be given several times.
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = field)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Sends credentials that the log has, such as `Authorization` and `Cookie` of an HTTP archive, and requests whose query has a
    /// secret, such as `access_token`.
    #[arg(long)]
    with_credentials: bool,
    /// Sends also requests that the log shows as refused (400, 401, 403, 405, 407, 421, 429, and 444 and 495 to 497 of nginx): they may be
    /// attacks that are let through from here.
    #[arg(long)]
    with_refused: bool,
    /// Paths that are not sent, as `/logout` or `/admin/*`: `*` stands for any text. Can be given several times.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    exclude: Vec<String>,
    /// The most bytes of a body that are compared by content. Of larger ones, length and hash are compared.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(0..=MOST_BODY_BYTES))]
    max_body: u64,
    /// A difference that does not count: a cause of the report, or a cause and what differs, as `field-added:x-powered-by` or
    /// `cookie:session*`. Can be given several times.
    #[arg(long, value_name = "CAUSE[:SUBJECT]", value_parser = ignored)]
    ignore: Vec<(DifferenceCause, String)>,
}

impl ReplayOptions {
    pub(super) fn max_body_bytes(&self) -> usize {
        self.max_body as usize
    }

    /// # Errors
    /// What is wrong with the options together.
    pub(super) fn plan(&self) -> Result<RehearsalPlan, String> {
        if self.speed != 1.0 && self.pace != Pace::Recorded {
            return Err("`--speed` needs `--pace recorded`".to_owned());
        }
        if let Some(host) = &self.host
            && (host.is_empty() || HeaderValue::from_str(host).is_err() || host.contains(['/', ' ']))
        {
            return Err(format!("`{host}` is not a host; write it as `shop.example` or `shop.example:8443`"));
        }
        let methods = if self.all_methods { Vec::new() } else { self.methods.clone() };
        Ok(RehearsalPlan {
            methods: methods.iter().map(|method| method.trim().to_ascii_uppercase()).collect(),
            pace: self.pace,
            speed: self.speed,
            concurrency: self.concurrency as usize,
            limit: self.limit,
            sample: self.sample,
            distinct: if self.all { Distinct::All } else { Distinct::Once },
            host: self.host.clone(),
            fields: self.headers.clone(),
            with_credentials: self.with_credentials,
            with_refused: self.with_refused,
            excluded: self.exclude.clone(),
            ignored: self.ignore.clone(),
            max_body_bytes: self.max_body_bytes(),
        })
    }
}

/// An address that a name has in place of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivenAddress {
    host: String,
    port: u16,
    address: IpAddr,
}

impl GivenAddress {
    pub(super) fn parts(&self) -> (String, u16, SocketAddr) {
        (self.host.clone(), self.port, SocketAddr::new(self.address, self.port))
    }
}

impl FromStr for GivenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<GivenAddress, String> {
        const FORM: &str = "write it as `shop.example:443:10.0.0.5`";
        let (host, rest) = text.split_once(':').filter(|(host, _)| !host.is_empty()).ok_or(FORM)?;
        let (port, address) = rest.split_once(':').ok_or(FORM)?;
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let address = address.parse().map_err(|_| format!("`{address}` is not an IP address; {FORM}"))?;
        Ok(GivenAddress {
            host: host.to_owned(),
            port: port.parse().map_err(|_| format!("`{port}` is not a port; {FORM}"))?,
            address,
        })
    }
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed: &f64| (0.01..=1000.0).contains(speed));
    speed.ok_or_else(|| "write a number from 0.01 to 1000".to_owned())
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let percent =
        text.trim_end_matches('%').trim().parse().ok().filter(|percent: &f64| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "write a number from 0 to 100".to_owned())
}

fn sample(text: &str) -> Result<u64, String> {
    let of = text.strip_prefix("1/").and_then(|of| of.parse().ok()).filter(|of: &u64| *of > 0);
    of.ok_or_else(|| "write it as `1/100`".to_owned())
}

fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    const FORM: &str = "write it as `Name: value`";
    let (name, value) = text.split_once(':').ok_or(FORM)?;
    let name: HeaderName = name.trim().parse().map_err(|_| FORM)?;
    if name == http::header::HOST {
        return Err("the host is given with `--host`".to_owned());
    }
    Ok((name, value.trim().parse().map_err(|_| FORM)?))
}

fn pattern(text: &str) -> Result<String, String> {
    match text.starts_with(['/', '*']) && !text.contains('?') {
        true => Ok(text.to_owned()),
        false => Err("write a path without its query, such as `/logout` or `/admin/*`".to_owned()),
    }
}

fn ignored(text: &str) -> Result<(DifferenceCause, String), String> {
    let (name, subject) = text.split_once(':').unwrap_or((text, ""));
    let cause = DifferenceCause::of_name(name).ok_or_else(|| {
        let names: Vec<&str> = DifferenceCause::ALL.iter().map(|cause| cause.name()).collect();
        format!("`{name}` is no cause; the causes are {}", names.join(", "))
    })?;
    Ok((cause, subject.trim().to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rehearsal knows secrets by parts of their names, since it reads the logs of other programs.
    #[test]
    fn fields_that_records_hide_are_not_sent_by_a_rehearsal() {
        for name in weir_plugins::SECRET_FIELDS {
            assert!(weir_rehearsal::is_secret(name), "{name}");
        }
    }

    #[test]
    fn options_with_a_form_of_their_own_are_read() {
        assert_eq!(sample("1/100"), Ok(100));
        assert!(sample("0.1").is_err() && sample("1/0").is_err());
        assert_eq!(percent("0.5%"), Ok(0.5));
        assert!(percent("101").is_err() && percent("NaN").is_err() && speed("0").is_err());
        assert_eq!(ignored("field-added: X-Weir"), Ok((DifferenceCause::FieldAdded, "x-weir".to_owned())));
        assert!(ignored("fields").is_err_and(|problem| problem.contains("field-added")));
        assert!(field("host: a").is_err_and(|problem| problem.contains("`--host`")));
        assert!(pattern("/a*").is_ok() && pattern("a").is_err() && pattern("/a?b").is_err());
        assert!(field("X-A").is_err() && field("X A: b").is_err() && field("X-A: b").is_ok());
    }

    #[test]
    fn names_are_resolved_as_with_curl() {
        let of = |text: &str| text.parse::<GivenAddress>().map(|name| name.parts());
        assert_eq!(
            of("a.example:443:10.0.0.5"),
            Ok(("a.example".to_owned(), 443, SocketAddr::from(([10, 0, 0, 5], 443))))
        );
        assert!(of("a.example:443:[::1]").is_ok_and(|(_, _, address)| address.is_ipv6()));
        assert!(of("a.example").is_err() && of("a.example:x:10.0.0.5").is_err() && of("a.example:80:b").is_err());
    }
}
