//! For fuzzing: an exchange taken through an instance of a module.

use std::sync::Arc;
use std::time::Duration;

use weir_plugin::{CalledService, Exchange, Services};
use weir_proto::Trailers;
use weir_proto::h1::{self, Limits};

use crate::loaded::{CompiledModule, compiled};
use crate::log::PluginLog;
use crate::metrics::PluginMetrics;
use crate::shared_data::SharedData;
use crate::state::{Access, CallAnswer, Outside, PluginFacts, Rights};
use crate::vm::{MessageSide, PluginFailure, Vm};

/// A module whose configuration says which functions of the host it calls.
pub struct TriedModule(Arc<CompiledModule>);

/// Everything is allowed.
const ALL: Rights = Rights { request: Access::Write, response: Access::Write, answers: true, calls: true };

impl TriedModule {
    /// Compiles a module.
    ///
    /// # Errors
    /// Why it is none.
    pub fn of(content: &[u8]) -> Result<TriedModule, String> {
        compiled(content).map(TriedModule)
    }

    /// Starts an instance with this configuration, and takes one exchange through all of its callbacks.
    ///
    /// # Errors
    /// Why the instance has ended early.
    pub fn run(&self, configuration: &[u8]) -> Result<(), String> {
        self.take_through(configuration).map_err(|failure| failure.to_string())
    }

    fn take_through(&self, configuration: &[u8]) -> Result<(), PluginFailure> {
        let facts = PluginFacts {
            name: "tried",
            conf: configuration.to_vec(),
            callback_time: Duration::from_secs(10),
            memory: 1 << 20,
            fails_open: false,
            shared: Arc::new(SharedData::default()),
            metrics: PluginMetrics::of("tried"),
            log: PluginLog::new("tried"),
        };
        let service = CalledService { urls: ["http://127.0.0.1:1".into()].into(), is_verified: true };
        let services = Arc::new(Services::from([("auth".into(), service)]));
        let outside = Outside { services, ..Outside::default() };
        let mut vm = Vm::start(&self.0.pre, &Arc::new(facts), outside, (1, false))?;
        let mut exchange = exchange();
        let context = vm.open()?;
        vm.on_tick()?;
        for side in [MessageSide::Request, MessageSide::Response] {
            vm.lend(&mut exchange, |vm| {
                vm.on_headers(side, context, ALL, false)?;
                let mut content = b"the content".to_vec();
                vm.on_body(side, (context, ALL), &mut content, false)?;
                vm.on_trailers(side, (context, ALL), &mut Trailers::default())
            })?;
            vm.take_answer(context);
        }
        let calls = vm.take_all_calls();
        for call in calls {
            let fields = vec![(b":status".to_vec(), b"204".to_vec())];
            let answer = CallAnswer { token: call.token, context: call.context, fields, ..CallAnswer::default() };
            vm.lend(&mut exchange, |vm| vm.on_answer(answer, ALL))?;
        }
        vm.lend(&mut exchange, |vm| vm.close(context, ALL))
    }
}

/// An exchange with a request for `/a?b=1` that has `X-One: 1` and two fields `X-Two`, and a response.
pub(crate) fn exchange() -> Exchange {
    let mut exchange = Exchange::default();
    let head = b"GET /a?b=1 HTTP/1.1\r\nHost: shop.example\r\nX-One: 1\r\nX-Two: 2\r\nX-Two: 3\r\n\r\n";
    h1::parse_request(head, &Limits::default(), &mut exchange.request).expect("it is a request");
    exchange.response.set_status(200);
    exchange.response.head.add(b"X-Three", b"3").expect("it is a field");
    exchange
}
