//! Plugins of operators' own, by proxy-wasm.

mod bodies;
mod c_filter;
mod faults;
mod kept;
mod module;
mod requests;
mod sdk;
mod services;

use weir_testkit::{Answer, Gateway, Launcher, Origin, TempDir};

use module::module;

/// A gateway with one such plugin, `own`, on the route `/own/*`; `/free` has none.
struct WasmRig {
    gateway: Gateway,
    origin: Origin,
    directory: TempDir,
}

/// How a gateway with a plugin is made.
struct WasmRigOptions<'a> {
    functions: &'a str,
    /// More keys of the plugin in the settings: `, fail: open`.
    keys: &'a str,
    /// The options of the plugin on the route.
    options: &'a str,
    /// More of the file.
    more: &'a str,
}

impl Default for WasmRigOptions<'_> {
    fn default() -> Self {
        WasmRigOptions { functions: "", keys: "", options: "{}", more: "" }
    }
}

impl WasmRig {
    fn of(functions: &str) -> WasmRig {
        WasmRig::with(WasmRigOptions { functions, ..WasmRigOptions::default() })
    }

    fn with(options: WasmRigOptions) -> WasmRig {
        WasmRig::with_origin(options, WasmRig::telling_origin())
    }

    /// Answers with the request as it came, and its content.
    fn telling_origin() -> Origin {
        Origin::serving(|request| {
            let fields: String = request.headers.0.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
            let head = format!("{} {}\n{fields}\n", request.method, request.target);
            Answer::with(200, "X-Origin: 1\r\n", [head.as_bytes(), &request.body].concat())
        })
    }

    fn with_origin(options: WasmRigOptions, origin: Origin) -> WasmRig {
        let code = module(options.functions);
        WasmRig::with_code(options, origin, &code)
    }

    fn with_code(options: WasmRigOptions, origin: Origin, code: &[u8]) -> WasmRig {
        let directory = TempDir::new();
        let file = directory.write("own.wasm", code);
        let gateway = launcher().start(&yaml(&origin, &file.to_string_lossy(), &options));
        WasmRig { gateway, origin, directory }
    }

    fn get(&self, target: &str) -> weir_testkit::Response {
        self.gateway.get(target)
    }
}

fn launcher() -> Launcher {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
}

fn yaml(origin: &Origin, file: &str, options: &WasmRigOptions) -> String {
    let WasmRigOptions { keys, options, more, .. } = options;
    let node = format!("upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}", origin.addr());
    format!(
        "wasm: {{ plugins: [{{ name: own, priority: 100, file: {file}{keys} }}] }}
routes:
  - {{ id: own, uri: /own/*, plugins: {{ own: {options} }}, {node} }}
  - {{ id: free, uri: /free, {node} }}
{more}"
    )
}
