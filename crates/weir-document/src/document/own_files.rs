//! The files that the settings of a node name: the node reads or writes them itself.

use std::path::PathBuf;

use super::admin::{AdminAddress, AdminSettings, AdminTls};
use super::certificate::Pem;
use super::controller::{
    ControllerCertificates, EnrolmentFiles, MutualTlsFiles, NodeCertificates, ServedClusterSettings,
};
use super::resource_access::OwnFiles;
use super::settings::NodeSettings;
use super::spiffe::{SpiffeSettings, WorkloadEndpoint};
use super::store::{EtcdSettings, EtcdTlsFiles, StoreKind};

impl NodeSettings {
    /// As written, relative to the directory of the configuration or to that of the process.
    pub fn own_files(&self) -> OwnFiles {
        // Long, since every setting stands here: a new one does not compile before someone asks whether it names a file.
        let NodeSettings {
            enable_access_log,
            trusted,
            store,
            admin,
            controller,
            // The directory of the node's data is refused as a whole.
            data_dir: _,
            // These are the lists of what resources may use.
            resources: _,
            listen: _,
            worker_processes: _,
            error_log_level: _,
            status: _,
            clients: _,
            allow_encoded_slashes: _,
            merge_slashes: _,
            upstream_tls_verify: _,
            shutdown_delay: _,
            worker_shutdown_timeout: _,
            dns: _,
            discovery: _,
            data_encryption: _,
            price_every: _,
            metrics_names: _,
            records: _,
            otlp_metrics: _,
            wasm,
            spiffe,
        } = self;
        let path = |file: &str| PathBuf::from(file);
        let mut public: Vec<PathBuf> = trusted.iter().filter_map(Pem::elsewhere).map(PathBuf::from).collect();
        let mut private: Vec<PathBuf> = enable_access_log.iter().map(|log| log.path.clone()).collect();
        private.extend(wasm.plugins.iter().map(|plugin| path(&plugin.file)));
        if let Some(SpiffeSettings { endpoint: WorkloadEndpoint::Unix(socket) }) = spiffe {
            private.push(path(socket));
        }
        match store.as_ref().map(|store| &store.kind) {
            Some(StoreKind::Embedded { path: file }) => private.extend(file.iter().map(|file| path(file))),
            Some(StoreKind::Etcd(EtcdSettings { tls: Some(tls), .. })) => {
                let EtcdTlsFiles { authorities, identity, server_name: _ } = tls;
                private.extend(identity.iter().flat_map(|(cert, key)| [path(cert), path(key)]));
                public.extend(authorities.iter().map(|file| path(file)));
            }
            Some(StoreKind::Kubernetes(cluster)) => private.extend(cluster.kubeconfig.iter().map(|file| path(file))),
            Some(StoreKind::Standalone | StoreKind::Etcd(_) | StoreKind::Controller(_)) | None => {}
        }
        let mut mutual: Vec<&MutualTlsFiles> = Vec::new();
        if let Some(StoreKind::Controller(settings)) = store.as_ref().map(|store| &store.kind) {
            match &settings.certificates {
                NodeCertificates::Files(files) => mutual.push(files),
                NodeCertificates::Enrolment(EnrolmentFiles { token, authorities }) => {
                    private.push(path(token));
                    public.push(path(authorities));
                }
            }
        }
        if let Some(ServedClusterSettings { kubernetes, certificates, .. }) = controller {
            private.extend(kubernetes.kubeconfig.iter().map(|file| path(file)));
            match certificates {
                ControllerCertificates::Files(files) => mutual.push(files),
                ControllerCertificates::Issued(_) => {}
            }
        }
        for MutualTlsFiles { cert, key, authorities } in mutual {
            private.extend([path(cert), path(key)]);
            public.push(path(authorities));
        }
        if let Some(admin) = admin {
            let AdminSettings {
                listen,
                tls,
                audit,
                keys: _,
                hosts: _,
                origins: _,
                tokens: _,
                oidc: _,
                console: _,
                shows_file: _,
                draft: _,
                lab: _,
                environments: _,
            } = admin;
            private.extend(audit.clone());
            if let AdminAddress::Unix(socket) = listen {
                private.push(socket.clone());
            }
            if let Some(AdminTls { cert, key, ca }) = tls {
                private.extend([path(cert), path(key)]);
                public.extend(ca.iter().map(|file| path(file)));
            }
        }
        OwnFiles { public, private }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::WrittenDocument;
    use crate::text::yaml::TextLimits;

    #[test]
    fn files_of_the_node_are_private_except_certificates_of_authorities() {
        let text = "ssl_trusted_certificate: t.pem\nenable_access_log: access.log\nadmin:\n  listen: \"127.0.0.1:1\"\n  \
                    audit: { path: audit.log }\n  tls: { cert: a.pem, key: a.key, ca: aca.pem }\nstore:\n  etcd:\n    \
                    hosts: [\"https://127.0.0.1:2379\"]\n    tls: { ca: eca.pem, cert: e.pem, key: e.key }\n";
        let document = WrittenDocument::parse("text", text, &|_| None, TextLimits::default()).expect("YAML");
        let OwnFiles { public, private } = document.settings.own_files();
        let paths = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(PathBuf::from).collect() };
        assert_eq!(public, paths(&["t.pem", "eca.pem", "aca.pem"]));
        assert_eq!(private, paths(&["access.log", "e.pem", "e.key", "audit.log", "a.pem", "a.key"]));
    }
}
