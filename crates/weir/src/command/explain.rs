use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use weir_control::FileStore;
use weir_control::explain::{Question, Unexplained, explain};

use crate::exit::{self, Failure};
use crate::node::PLUGINS;
use crate::say::say;

/// Says which routes a request could take, why each lost but one, and which plugins it meets there.
///
/// Nothing is sent. `weir explain weir.yaml GET https://shop.example/orders/1 -H "X-Tenant: a"`
#[derive(Debug, Args)]
pub struct Explain {
    /// The configuration file.
    file: PathBuf,
    /// The method of the request.
    method: String,
    /// The URL of the request, with its host.
    url: String,
    /// A header field of the request, as `Name: value`. May stand several times.
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    headers: Vec<String>,
    /// The address of the client.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    from: IpAddr,
}

impl Explain {
    pub fn execute(self) -> ExitCode {
        let question = Question { method: &self.method, url: &self.url, headers: &self.headers, from: self.from };
        let explained = FileStore::new(&self.file)
            .read()
            .map_err(Unexplained::Document)
            .and_then(|loaded| explain(&loaded.document, &PLUGINS, &question));
        match explained {
            Ok(explanation) => {
                print!("{explanation}");
                return exit::DONE;
            }
            Err(Unexplained::Document(faults)) => faults.iter().for_each(|fault| say!("{fault}")),
            Err(Unexplained::Request(problem)) => say!("{problem}"),
        }
        Failure::Configuration.into()
    }
}
