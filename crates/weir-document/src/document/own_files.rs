//! The files that the settings of a node name: the node reads or writes them itself.

use std::path::PathBuf;

use super::admin::{AdminAddress, AdminSettings, AdminTls, EtcdSettings, EtcdTlsFiles, StoreKind};
use super::settings::NodeSettings;

impl NodeSettings {
    /// As written, relative to the directory of the configuration or to that of the process.
    pub fn own_files(&self) -> Vec<PathBuf> {
        // Every setting stands here, so that a new one does not compile before someone asks whether it names a file.
        let NodeSettings {
            enable_access_log,
            trusted,
            store,
            admin,
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
            upstream_tls_verify: _,
            worker_shutdown_timeout: _,
            dns: _,
            discovery: _,
            data_encryption: _,
            price_every: _,
            metrics_names: _,
            records: _,
            otlp_metrics: _,
        } = self;
        let mut files: Vec<PathBuf> = enable_access_log.iter().map(|log| log.path.clone()).collect();
        files.extend(trusted.iter().filter_map(|pem| pem.elsewhere()).map(PathBuf::from));
        match store.as_ref().map(|store| &store.kind) {
            Some(StoreKind::Embedded { path }) => files.extend(path.iter().map(|path| PathBuf::from(&**path))),
            Some(StoreKind::Etcd(EtcdSettings { tls: Some(tls), .. })) => {
                let EtcdTlsFiles { authorities, identity, server_name: _ } = tls;
                let identity = identity.iter().flat_map(|(cert, key)| [cert, key]);
                files.extend(identity.chain(authorities).map(|file| PathBuf::from(&**file)));
            }
            Some(StoreKind::Standalone | StoreKind::Etcd(_)) | None => {}
        }
        if let Some(AdminSettings { listen, keys: _, tls, hosts: _, origins: _, tokens: _, audit }) = admin {
            files.extend(audit.clone());
            if let AdminAddress::Unix(path) = listen {
                files.push(path.clone());
            }
            if let Some(AdminTls { cert, key, ca }) = tls {
                files.extend([cert, key].into_iter().chain(ca).map(|file| PathBuf::from(&**file)));
            }
        }
        files
    }
}
