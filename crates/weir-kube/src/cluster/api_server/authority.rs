//! What a controller needs to issue certificates: a Secret for its authority, a ConfigMap for the public half of it, and the review of
//! the tokens by which nodes prove themselves.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};

use super::super::ClusterError;
use super::{ApiServer, within};

/// Where the API server says which pod a token was made for.
const POD: &str = "authentication.kubernetes.io/pod-name";

/// The entries of a Secret or a ConfigMap as they were read.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoredEntries {
    pub entries: BTreeMap<String, Vec<u8>>,
    /// The version that a write is based on; `None` if there is no such object.
    pub version: Option<String>,
}

/// What the API server says of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReviewedToken {
    /// It is valid for the audience that was asked for.
    Valid {
        /// As `system:serviceaccount:NAMESPACE:NAME`.
        user: String,
        /// The pod that it was made for; empty if it belongs to none.
        pod: String,
    },
    /// It is not, for this reason.
    Invalid(String),
}

impl ApiServer {
    /// The namespace of the credentials.
    pub fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// Reads a Secret of the namespace of the credentials.
    ///
    /// # Errors
    /// If the API server does not answer, or forbids it.
    pub async fn read_secret(&self, name: &str) -> Result<StoredEntries, ClusterError> {
        let found = within(self.own::<Secret>().get_opt(name)).await?;
        Ok(found.map_or_else(StoredEntries::default, |secret| StoredEntries {
            entries: secret.data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, value)).collect(),
            version: secret.metadata.resource_version,
        }))
    }

    /// Writes all entries of a Secret that has this version, or creates it if there is none. A conflict
    /// ([`ClusterError::is_conflict`]) says that another process was faster.
    ///
    /// # Errors
    /// If it has not been written.
    pub async fn write_secret(&self, name: &str, stored: StoredEntries) -> Result<(), ClusterError> {
        let api = self.own::<Secret>();
        // What is not known here, such as labels and owners, stays.
        let mut secret = match stored.version {
            Some(_) => within(api.get(name)).await?,
            None => Secret::default(),
        };
        let data = stored.entries.into_iter().map(|(key, value)| (key, ByteString(value)));
        secret.data = Some(data.collect());
        secret.metadata = based_on(secret.metadata, name, stored.version.clone());
        let by = PostParams::default();
        match stored.version {
            Some(_) => within(api.replace(name, &by, &secret)).await.map(drop),
            None => within(api.create(&by, &secret)).await.map(drop),
        }
    }

    /// Reads a ConfigMap of the namespace of the credentials.
    ///
    /// # Errors
    /// If the API server does not answer, or forbids it.
    pub async fn read_config_map(&self, name: &str) -> Result<StoredEntries, ClusterError> {
        let found = within(self.own::<ConfigMap>().get_opt(name)).await?;
        Ok(found.map_or_else(StoredEntries::default, |map| StoredEntries {
            entries: map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes())).collect(),
            version: map.metadata.resource_version,
        }))
    }

    /// Writes one entry of a ConfigMap that has this version, or creates it if there is none. A conflict
    /// ([`ClusterError::is_conflict`]) says that another process was faster.
    ///
    /// # Errors
    /// If it has not been written.
    pub async fn write_config_map(
        &self,
        name: &str,
        (key, value): (&str, &str),
        version: Option<String>,
    ) -> Result<(), ClusterError> {
        let api = self.own::<ConfigMap>();
        // What is not known here, such as labels and owners, stays.
        let mut map = match version {
            Some(_) => within(api.get(name)).await?,
            None => ConfigMap::default(),
        };
        map.data.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        map.metadata = based_on(map.metadata, name, version.clone());
        let by = PostParams::default();
        match version {
            Some(_) => within(api.replace(name, &by, &map)).await.map(drop),
            None => within(api.create(&by, &map)).await.map(drop),
        }
    }

    /// Asks whether a token is valid for an audience, and whose it is.
    ///
    /// # Errors
    /// If the API server does not answer, or forbids to ask.
    pub async fn review_token(&self, token: &str, audience: &str) -> Result<ReviewedToken, ClusterError> {
        let spec = TokenReviewSpec { audiences: Some(vec![audience.to_owned()]), token: Some(token.to_owned()) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let status = within(api.create(&PostParams::default(), &review)).await?.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            let reason = status.error.unwrap_or_else(|| "the API server does not accept it".to_owned());
            return Ok(ReviewedToken::Invalid(reason));
        }
        // An API server that does not know audiences answers without them: then it has not looked at this one.
        if !status.audiences.iter().flatten().any(|one| one == audience) {
            return Ok(ReviewedToken::Invalid(format!("it is not for the audience {audience}")));
        }
        let UserInfo { username, extra, .. } = status.user.unwrap_or_default();
        let pod = extra.and_then(|mut extra| extra.remove(POD)?.into_iter().next());
        Ok(ReviewedToken::Valid { user: username.unwrap_or_default(), pod: pod.unwrap_or_default() })
    }

    fn own<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::default_namespaced(self.client.clone())
    }
}

fn based_on(metadata: ObjectMeta, name: &str, version: Option<String>) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), resource_version: version, ..metadata }
}
