//! `acme`: the certificates to order, those already obtained, and the responses to the authority's challenges.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use weir_gateway::snapshot::ListenerProtocol;
use weir_gateway::snapshot::{Certificate, Certificates, Chain, ChainReach, Link, Rank, Route, RouteRule, Target};
use weir_net::tls::{
    self, CertificateFacts, InvalidTerms, Server, ServerTerms, TlsConnector, Trust, UpstreamTerms, Versions,
};
use weir_plugin::{Exchange, Flow, Plugin, RouteFacts, Stage, Stop};
use weir_proto::Method;

use super::Compiler;
use crate::acme::{AcmeTerms, Challenges, PREFIX};
use crate::document::{AcmeHost, Challenge, NamedBy};

/// The id of the challenge route; a route of a file cannot have it, since ids contain no slash.
const ROUTE: &str = "acme/http-01";

impl Compiler<'_> {
    /// The certificates to order: one for each host that has none in `ssls`.
    pub(super) fn acme(&self, configured: &Certificates) -> Option<Arc<AcmeTerms>> {
        let written = self.document.acme.as_ref()?;
        let own = match &written.authorities {
            Some(pem) => Some(self.chain(pem)?),
            None => None,
        };
        let trust = own.as_deref().map_or(Trust::System(&self.document.beside.system_roots), Trust::Authorities);
        let complain = |wrong: InvalidTerms| {
            let origin = written.authorities.as_ref().map_or(&written.origin, |pem| &pem.origin);
            self.report(&origin.path, origin.place, format!("cannot be used: {wrong}"), None);
        };
        let terms = UpstreamTerms { trust, identity: None, protocols: &["http/1.1"] };
        let client = TlsConnector::new(&terms).map_err(complain).ok()?;
        let mut hosts = written.hosts.clone();
        hosts.retain(|host| {
            let is_there = configured.names(&host.name);
            if is_there {
                let advice = "remove the host from `acme.hosts` or from `ssls`".to_owned();
                let problem = format!("`{}` has a certificate in `ssls`, and that certificate is used", host.name);
                self.warnings.report_text(&host.origin.path, host.origin.place, problem, Some(advice));
            }
            !is_there
        });
        let speaks = |protocol| self.document.listens().any(|listen| listen.settings.protocol == protocol);
        let in_the_clear = speaks(ListenerProtocol::Http);
        let challenge = written.challenge.unwrap_or(match in_the_clear || !speaks(ListenerProtocol::Https) {
            true => Challenge::Http01,
            false => Challenge::TlsAlpn01,
        });
        if challenge == Challenge::Http01 && !in_the_clear {
            let advice =
                "add an address without TLS that receives the requests to port 80: `listen: [\":80\"]`".to_owned();
            let problem = "the challenge http-01 uses HTTP on port 80, and no `listen` address serves plain HTTP";
            self.warnings.report_text(&written.origin.path, written.origin.place, problem, Some(advice));
        }
        (!hosts.is_empty()).then(|| {
            Arc::new(AcmeTerms {
                source: Arc::clone(&self.document.source),
                hosts,
                emails: written.emails.clone(),
                challenge,
                directory: written.directory.clone(),
                http: self.http.clone(),
                client,
                folder: self.document.beside.directory.join(written.folder()),
                renew_before: written.renew_before,
                external_account: written.external_account.clone(),
            })
        })
    }

    /// Adds the certificates obtained so far. One that cannot be used is only a warning, since it is not part of the
    /// configuration.
    pub(super) fn add_obtained(&self, hosts: &[AcmeHost], certificates: &mut Certificates) {
        for host in hosts {
            let file = self.document.acme.as_ref().map(|acme| acme.file_of(&host.name)).unwrap_or_default();
            let Some(Ok(text)) = self.document.beside.files.get(&file, NamedBy::Settings) else { continue };
            match self.obtained(host, text, certificates) {
                Ok(certificate) => {
                    let name = std::iter::once(&*host.name);
                    certificates
                        .add(certificate, name)
                        .expect("a host with a certificate in `ssls` is not in this list");
                }
                Err(reason) => {
                    let problem = format!("`{file}` {reason}");
                    let advice = Some("a new certificate is ordered".to_owned());
                    self.warnings.report_text(&host.origin.path, host.origin.place, problem, advice);
                }
            }
        }
    }

    /// The obtained certificate, with the requirement of client certificates that holds for its host without it: an order must
    /// not open what an entry of `ssls` closes.
    fn obtained(&self, host: &AcmeHost, text: &[u8], configured: &Certificates) -> Result<Certificate, String> {
        let chain = tls::certificates(text).map_err(|error| error.to_string())?;
        let facts = CertificateFacts::of(&chain[0]).map_err(|error| error.to_string())?;
        let now = self.document.read_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if facts.until < i64::try_from(now).unwrap_or(i64::MAX) {
            // The warning names the host, and `/status` shows why the renewal failed.
            let advice = Some("see `/status` for the reason why it was not renewed".to_owned());
            let problem = format!("the certificate of `{}` has expired", host.name);
            self.warnings.report_text(&host.origin.path, host.origin.place, problem, advice);
        }
        let key = tls::certified(chain, text).map_err(|error| error.to_string())?;
        if let Some(governing) = configured.governing(&host.name).filter(|governing| governing.proof.is_some()) {
            return Ok(Certificate { server: governing.server.with_keys(vec![key]), proof: governing.proof.clone() });
        }
        let terms =
            ServerTerms { keys: vec![key], versions: Versions::ALL, clients: None, protocols: self.protocols() };
        Ok(Certificate { server: Server::new(terms).map_err(|wrong| wrong.to_string())?, proof: None })
    }

    /// Challenges are served by a route, so that other requests cost nothing more. It matches only the tokens of open orders, and
    /// runs no other plugin: an authority cannot authenticate.
    pub(super) fn challenge_route(&self, hosts: &[AcmeHost], number: usize) -> (RouteRule, Route) {
        let challenges = &self.node.challenges;
        let rule = RouteRule {
            uris: vec![format!("{PREFIX}*")],
            hosts: hosts.iter().map(|host| host.name.to_string()).collect(),
            listeners: Box::default(),
            methods: Some([Method::Get, Method::Head].into_iter().collect()),
            remote_addrs: Vec::new(),
            priority: i64::MAX,
            vars: None,
            among: Some(Arc::clone(challenges) as _),
            order: u64::MAX,
            route: number as u32,
        };
        let link = Link {
            step: Arc::new(ChallengeAnswer(Arc::clone(challenges))),
            rank: Rank {
                stage: Stage::Access,
                reach: ChainReach::Own,
                priority: std::cmp::Reverse(0),
                first_in_responses: false,
            },
            // It is not a plugin that can be configured, so it has no plugin number and its cost is not measured.
            plugin: u16::MAX,
            name: "acme",
            identifies: false,
        };
        let facts = RouteFacts { route_id: ROUTE.into(), route_name: ROUTE.into(), ..RouteFacts::default() };
        let route = Route {
            facts,
            chain: Chain::new(vec![link]),
            target: Target::Nothing,
            timeouts: None,
            request_timeout: None,
            upgrades: false,
            encoded_separators: false,
            merge_slashes: false,
        };
        (rule, route)
    }
}

/// Responds to the challenges of an authority.
struct ChallengeAnswer(Arc<Challenges>);

impl Plugin for ChallengeAnswer {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        match self.0.answer(exchange.request.path()) {
            // RFC 8555 §8.3.
            Some(answer) => Err(exchange.respond(200, "application/octet-stream", answer.as_bytes())),
            // The order has ended since the route matched.
            None => Err(Stop::Respond(404)),
        }
    }
}
