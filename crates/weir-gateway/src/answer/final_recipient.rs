//! Requests that the gateway answers as their final recipient: `OPTIONS *`, and `OPTIONS` and `TRACE` that may go no
//! further.

use weir_plugin::{Exchange, Stop};
use weir_proto::Method;

/// The value of `Allow`: the methods of a server that forwards everything. `TRACE` is left out: its response would show the
/// client's own fields to scripts that must not see them.
const ALLOW: &[u8] = b"GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS";

/// Called if no route matches. `OPTIONS *` asks about the server as a whole (RFC 9110 §9.3.7), and is answered.
pub(crate) fn without_route(exchange: &mut Exchange) -> Stop {
    let asks_server = exchange.request.method == Method::Options && exchange.request.path() == b"*";
    if asks_server { allowed(exchange, 200) } else { Stop::NoRoute }
}

/// Decrements `Max-Forwards` of `OPTIONS` and `TRACE`, and answers the request if it is 0 (RFC 9110 §7.6.2).
#[inline]
pub(crate) fn count_hop(exchange: &mut Exchange) -> Result<(), Stop> {
    match exchange.request.method {
        Method::Options | Method::Trace => count(exchange),
        _ => Ok(()),
    }
}

fn count(exchange: &mut Exchange) -> Result<(), Stop> {
    const NAME: &[u8] = b"Max-Forwards";
    let head = &mut exchange.request.head;
    let mut values = head.values(NAME);
    let Some(value) = values.next() else { return Ok(()) };
    if values.next().is_some() || value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Stop::Respond(400));
    }
    drop(values);
    // A number of hops that does not fit into 64 bits counts as the largest that does.
    let hops = std::str::from_utf8(value).ok().and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(u64::MAX);
    match (hops.checked_sub(1), exchange.request.method) {
        (Some(left), _) => head.set(NAME, itoa::Buffer::new().format(left).as_bytes()).map_err(|_| Stop::Internal),
        (None, Method::Trace) => Err(allowed(exchange, 405)),
        (None, _) => Err(allowed(exchange, 200)),
    }
}

fn allowed(exchange: &mut Exchange, status: u16) -> Stop {
    let stop = exchange.respond(status, "text/plain; charset=utf-8", b"");
    exchange.response.head.remove(b"Content-Type");
    exchange.response.head.add(b"Allow", ALLOW).expect("constant and valid");
    stop
}

#[cfg(test)]
mod tests {
    use weir_proto::h1::{Limits, parse_request};

    use super::*;

    fn exchange(line: &str, fields: &str) -> Exchange {
        let mut exchange = Exchange::default();
        let head = format!("{line} HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
        exchange
    }

    #[test]
    fn u10_hops_are_counted_for_options_and_trace() {
        for (line, fields, want, left) in [
            ("OPTIONS /", "Max-Forwards: 1\r\n", Ok(()), Some("0")),
            ("TRACE /", "Max-Forwards: 010\r\n", Ok(()), Some("9")),
            ("OPTIONS /", "Max-Forwards: 99999999999999999999999\r\n", Ok(()), Some("18446744073709551614")),
            ("OPTIONS /", "", Ok(()), None),
            ("GET /", "Max-Forwards: 0\r\n", Ok(()), Some("0")),
            ("OPTIONS /", "Max-Forwards: 0\r\n", Err(200), None),
            ("TRACE /", "Max-Forwards: 0\r\n", Err(405), None),
            ("TRACE /", "Max-Forwards: x\r\n", Err(400), None),
            ("TRACE /", "Max-Forwards: 1\r\nMax-Forwards: 0\r\n", Err(400), None),
        ] {
            let mut exchange = exchange(line, fields);
            let got = count_hop(&mut exchange).map_err(|stop| match stop {
                Stop::Respond(status) => status,
                _ => exchange.response.status,
            });
            assert_eq!(got, want, "{line} {fields:?}");
            if want.is_ok() {
                let value = exchange.request.head.value(b"max-forwards");
                assert_eq!(value, left.map(str::as_bytes), "{line} {fields:?}");
            }
        }
    }

    #[test]
    fn u10_options_asterisk_asks_the_server() {
        let mut asked = exchange("OPTIONS *", "");
        assert_eq!(without_route(&mut asked), Stop::Answered);
        assert_eq!((asked.response.status, asked.response.head.value(b"allow")), (200, Some(ALLOW)));
        assert_eq!(without_route(&mut exchange("OPTIONS /", "")), Stop::NoRoute);
    }
}
