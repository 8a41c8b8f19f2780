//! A plugin as users write it: names a team to the upstream, asks a service who the client is, and shouts answers.

use std::time::Duration;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root { team: String::new() }));
}}

struct Root {
    team: String,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _: usize) -> bool {
        let conf = self.get_plugin_configuration().unwrap_or_default();
        self.team = String::from_utf8(conf).unwrap_or_default();
        if self.team.is_empty() {
            let _ = proxy_wasm::hostcalls::log(LogLevel::Error, "`conf` must name a team");
        }
        !self.team.is_empty()
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request { team: self.team.clone() }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Request {
    team: String,
}

impl Context for Request {
    fn on_http_call_response(&mut self, _: u32, fields: usize, _: usize, _: usize) {
        let user = self.get_http_call_response_header("x-user");
        match user.filter(|_| fields > 0) {
            Some(user) => {
                self.set_http_request_header("x-user", Some(&user));
                self.resume_http_request();
            }
            None => self.send_http_response(401, vec![("x-why", "nobody")], Some(b"who?")),
        }
    }
}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        self.set_http_request_header("x-team", Some(&self.team));
        if self.get_http_request_header("x-panic").is_some() {
            panic!("as the client wishes");
        }
        if self.get_http_request_header("x-ask").is_none() {
            return Action::Continue;
        }
        let fields = vec![(":method", "GET"), (":path", "/check"), (":authority", "auth")];
        match self.dispatch_http_call("auth", fields, None, vec![], Duration::from_secs(5)) {
            Ok(_) => Action::Pause,
            Err(_) => {
                self.send_http_response(502, vec![], None);
                Action::Pause
            }
        }
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.set_http_response_header("content-length", None);
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, is_end: bool) -> Action {
        if !is_end {
            return Action::Pause;
        }
        let body = self.get_http_response_body(0, size).unwrap_or_default();
        self.set_http_response_body(0, size, &body.to_ascii_uppercase());
        Action::Continue
    }
}
