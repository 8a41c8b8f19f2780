//! Channels over WebSub, as topics of one hub.

use super::channels::ApiChannel;
use crate::conversion::DocumentConversion;
use crate::login::{self, NamedPlugin, NotConvertible};
use crate::output::{ConvertedResource, id_of};
use crate::yaml::{Yaml, YamlMembers};

const ID: &str = "hub";
/// The path for subscriptions, beside those of the topics.
const PATH: &str = "/hub";
/// The data directory of the Weir package.
const DATA_DIR: &str = "/var/lib/weir";

/// The hub of a definition, filled while its channels are read.
#[derive(Default)]
pub(super) struct ConvertedHub {
    /// The URL of the hub, and its path.
    at: Option<(String, String)>,
    topics: Vec<String>,
}

impl ConvertedHub {
    pub(super) fn add(
        &mut self,
        conversion: &mut DocumentConversion,
        channel: &ApiChannel,
        location: &str,
        base: &str,
        login: Result<Option<NamedPlugin>, NotConvertible>,
    ) {
        let address = channel.address.trim_start_matches('/');
        // A parameter matches several topics, and `*` is allowed only at the end of a topic.
        let address = address.split_once('{').map_or(address.to_owned(), |(fixed, _)| format!("{fixed}*"));
        let plugins = match login {
            Ok(login) => login.into_iter().collect(),
            Err(NotConvertible) => vec![login::refusal()],
        };
        if self.at.is_none() {
            self.at = Some((format!("https://{location}{PATH}"), format!("{base}{PATH}")));
            let uri = format!("{base}{PATH}");
            route(conversion, channel, "subscribing", ID.to_owned(), uri, &plugins);
        }
        self.topics.push(format!("https://{location}/{address}"));
        let what = format!("topic {}", channel.address);
        route(
            conversion,
            channel,
            &what,
            format!("topic-{}", id_of(&channel.address)),
            format!("{base}/{address}"),
            &plugins,
        );
    }

    /// Adds the hub, if it has a topic.
    pub(super) fn finish(self, conversion: &mut DocumentConversion) {
        let Some((url, _)) = self.at else { return };
        let root = conversion.root;
        conversion.differs(
            root,
            "WebSub: publishers have to log in as consumers, or sign with `publish.secret`; callbacks have to be public",
        );
        conversion.converted.settings.push(("data_dir".to_owned(), Yaml::text(DATA_DIR)));
        let members = vec![
            ("id".to_owned(), Yaml::text(ID)),
            ("url".to_owned(), Yaml::text(url)),
            ("topics".to_owned(), Yaml::texts(self.topics)),
        ];
        conversion.converted.hubs.push(ConvertedResource::new(
            &conversion.place(root),
            "channels over WebSub",
            members,
        ));
    }
}

fn route(
    conversion: &mut DocumentConversion,
    channel: &ApiChannel,
    what: &str,
    id: String,
    uri: String,
    plugins: &YamlMembers,
) {
    let mut members = vec![
        ("id".to_owned(), Yaml::text(id)),
        ("uri".to_owned(), Yaml::text(uri)),
        ("hub_id".to_owned(), Yaml::text(ID)),
    ];
    if !plugins.is_empty() {
        members.push(("plugins".to_owned(), Yaml::Map(plugins.clone())));
    }
    conversion.converted.routes.push(ConvertedResource::new(&conversion.place(channel.at), what, members));
}
