mod configuration_page;
mod ingress_page;
mod plugin_page;
mod variables;

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::say;

/// Prints a page of the reference for this version, in Markdown.
///
/// docs/reference contains the same pages.
#[derive(Debug, Args)]
pub(crate) struct ReferenceCommand {
    /// The page
    page: ReferencePage,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ReferencePage {
    /// The keys of resources.
    Configuration,
    /// All plugins with their options.
    Plugins,
    /// The annotations of ingress-nginx.
    IngressNginx,
    /// The variables for conditions and text templates.
    Variables,
}

impl ReferenceCommand {
    pub(crate) fn execute(self) -> ExitCode {
        let text = match self.page {
            ReferencePage::Configuration => configuration_page::page(),
            ReferencePage::Plugins => plugin_page::page(),
            ReferencePage::IngressNginx => ingress_page::page(),
            ReferencePage::Variables => variables::page(),
        };
        say::print(text.as_bytes())
    }
}
