//! Lists of plugins, as rules, ApisixPluginConfigs and ApisixGlobalRules have them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::secret_options::with_values;
use super::ApisixContext;
use super::outcomes::ApisixProblem;
use super::secrets;
use crate::objects::apisix::ApisixPlugin;

/// The most bytes of the options of a list, as JSON and with the values of Secrets.
const MOST_BYTES: usize = 64 << 10;
/// The most bytes that the regular expressions in the options of a namespace's objects take together when they are compiled.
const MOST_EXPRESSIONS: usize = 16 << 20;
/// What a plugin that is refused counts as: its check has compiled something, too.
const OF_REFUSED: usize = 64 << 10;

/// Told of a plugin that only works with HTTP, in a rule for TCP or UDP.
const ONLY_WITH_HTTP: &str = "works with HTTP alone, so it cannot be on TCP or UDP";
/// Told of a plugin that does not work with HTTP, anywhere else.
const ONLY_ON_STREAMS: &str = "works on streams alone, so it cannot be for requests";

/// A plugin with its options, as they are written and with the values of Secrets, in JSON.
type PluginCheck = (String, String, String);

/// What is known of plugins with their options: a check takes long.
#[derive(Default)]
pub(super) struct CheckedPlugins(BTreeMap<PluginCheck, Result<usize, String>>);

/// Checks plugins.
pub(super) struct PluginChecker<'a> {
    context: &'a ApisixContext<'a>,
    known: &'a mut CheckedPlugins,
    /// Those of this translation.
    used: BTreeMap<PluginCheck, Result<usize, String>>,
    /// By namespace.
    spent: BTreeMap<String, usize>,
}

impl<'a> PluginChecker<'a> {
    pub(super) fn new(context: &'a ApisixContext<'a>, known: &'a mut CheckedPlugins) -> PluginChecker<'a> {
        PluginChecker { context, known, used: BTreeMap::new(), spent: BTreeMap::new() }
    }

    /// The options of the plugins for requests of a list that are enabled. The last one with a name counts.
    ///
    /// # Errors
    /// Which plugin cannot be used, and why.
    pub(super) fn list(
        &mut self,
        namespace: &str,
        plugins: &[ApisixPlugin],
    ) -> Result<Map<String, Value>, ApisixProblem> {
        let all = self.list_of_any(namespace, plugins)?;
        match all.keys().find(|name| !self.context.options.plugins.works_on_requests(name)) {
            Some(name) => Err(ApisixProblem::Spec(ONLY_ON_STREAMS.to_owned()).at(&place(name))),
            None => Ok(all),
        }
    }

    fn list_of_any(&mut self, namespace: &str, plugins: &[ApisixPlugin]) -> Result<Map<String, Value>, ApisixProblem> {
        let mut all = Map::new();
        for plugin in plugins.iter().filter(|plugin| plugin.enable) {
            let options = self.options(namespace, plugin).map_err(|problem| problem.at(&place(&plugin.name)))?;
            all.insert(plugin.name.clone(), options);
        }
        let bytes = serde_json::to_string(&all).map_or(0, |text| text.len());
        if bytes > MOST_BYTES {
            let problem = format!("plugins: have options of {bytes} bytes, and at most {MOST_BYTES} are allowed");
            return Err(ApisixProblem::Spec(problem));
        }
        Ok(all)
    }

    /// The same of a rule for TCP or UDP.
    ///
    /// # Errors
    /// Which plugin cannot be used, and why.
    pub(super) fn list_of_streams(
        &mut self,
        namespace: &str,
        plugins: &[ApisixPlugin],
    ) -> Result<Map<String, Value>, ApisixProblem> {
        let all = self.list_of_any(namespace, plugins)?;
        match all.keys().find(|name| !self.context.options.plugins.works_on_streams(name)) {
            Some(name) => Err(ApisixProblem::Spec(ONLY_WITH_HTTP.to_owned()).at(&place(name))),
            None => Ok(all),
        }
    }

    /// The options of each plugin of a list that is enabled, or why it cannot be used. The last one with a name counts.
    pub(super) fn each(
        &mut self,
        namespace: &str,
        plugins: &[ApisixPlugin],
    ) -> BTreeMap<String, Result<Value, ApisixProblem>> {
        let enabled = plugins.iter().filter(|plugin| plugin.enable);
        let options = enabled.map(|plugin| {
            let options = self.list(namespace, std::slice::from_ref(plugin));
            (plugin.name.clone(), options.map(|mut options| options.remove(&plugin.name).unwrap_or_default()))
        });
        options.collect()
    }

    /// Whether requests must not be answered without the plugin.
    pub(super) fn protects(&self, plugin: &str) -> bool {
        self.context.options.plugins.protects(plugin)
    }

    /// Checks a plugin without values of Secrets.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn check(&mut self, namespace: &str, plugin: &str, options: &Value) -> Result<(), ApisixProblem> {
        self.check_with(namespace, plugin, (options, options)).map_err(|problem| problem.at(&place(plugin)))
    }

    /// Keeps what this translation has asked, and nothing else.
    pub(super) fn finish(self) {
        self.known.0 = self.used;
    }

    fn options(&mut self, namespace: &str, plugin: &ApisixPlugin) -> Result<Value, ApisixProblem> {
        let options = with_values(self.context.world, namespace, &plugin.config, plugin.secret_ref.as_deref());
        let options = options.map_err(ApisixProblem::Reference)?;
        let (written, options) = (Value::Object(plugin.config.clone()), Value::Object(options));
        secrets::check_texts(&options)?;
        self.check_with(namespace, &plugin.name, (&written, &options))?;
        Ok(options)
    }

    fn check_with(
        &mut self,
        namespace: &str,
        plugin: &str,
        (written, options): (&Value, &Value),
    ) -> Result<(), ApisixProblem> {
        let spent = self.spent.entry(namespace.to_owned()).or_default();
        let too_much = || {
            let problem = "the regular expressions in the plugins of the namespace take more than 16 MiB together when they are compiled";
            ApisixProblem::Spec(problem.to_owned())
        };
        // The check itself compiles them.
        if *spent >= MOST_EXPRESSIONS {
            return Err(too_much());
        }
        let key = (plugin.to_owned(), written.to_string(), options.to_string());
        let asked = || self.context.options.plugins.check_of_apisix(plugin, written, options);
        let known = self.used.get(&key).cloned().or_else(|| self.known.0.remove(&key));
        let checked = known.unwrap_or_else(asked);
        self.used.insert(key, checked.clone());
        match checked {
            Ok(bytes) if *spent + bytes <= MOST_EXPRESSIONS => {
                *spent += bytes;
                Ok(())
            }
            refused => {
                *spent += OF_REFUSED;
                Err(refused.err().map_or_else(too_much, ApisixProblem::Spec))
            }
        }
    }
}

fn place(plugin: &str) -> String {
    format!("plugin {plugin}")
}
