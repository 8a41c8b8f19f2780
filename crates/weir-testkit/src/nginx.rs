//! A real nginx, for comparisons.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{Client, DEADLINE, TempDir, eventually, free_port};

/// Where Debian's nginx has its modules.
const MODULES: &str = "/usr/lib/nginx/modules";

/// A running nginx. Dropping it ends its process.
pub struct Nginx {
    process: Child,
    port: u16,
    _directory: TempDir,
}

impl Nginx {
    /// Starts nginx with the content of its `http` block, which gets the port to listen on. `None` if nginx is not installed.
    #[track_caller]
    pub fn start(http: impl FnOnce(u16) -> String) -> Option<Nginx> {
        Nginx::start_with(&[], http)
    }

    /// The same with modules, such as `http_echo`. `None` also if one of them is not installed.
    #[track_caller]
    pub fn start_with(modules: &[&str], http: impl FnOnce(u16) -> String) -> Option<Nginx> {
        let modules = loaded(modules)?;
        Nginx::run(|place, port| {
            format!(
                "{modules}http {{\n\
                 access_log off;\n\
                 client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f;\n\
                 uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;\n\
                 {}\n\
                 }}\n",
                http(port)
            )
        })
    }

    /// The same with the content of its `stream` block. `None` also if it has no module for that.
    #[track_caller]
    pub fn start_stream(stream: impl FnOnce(u16) -> String) -> Option<Nginx> {
        let module = loaded(&["stream"])?;
        Nginx::run(|_, port| format!("{module}stream {{\n{}\n}}\n", stream(port)))
    }

    #[track_caller]
    fn run(blocks: impl FnOnce(&str, u16) -> String) -> Option<Nginx> {
        let directory = TempDir::new();
        let port = free_port();
        let place = directory.path().display().to_string();
        let configuration = directory.write(
            "nginx.conf",
            format!(
                "daemon off; master_process off; pid {place}/pid; error_log {place}/error.log;\n{}events {{}}\n",
                blocks(&place, port)
            ),
        );
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("nginx");
        command.env("PATH", path).arg("-p").arg(directory.path()).arg("-c").arg(configuration).stderr(Stdio::null());
        let process = command.spawn().ok()?;
        let nginx = Nginx { process, port, _directory: directory };
        eventually("nginx listens", DEADLINE, || Client::try_connect(nginx.addr()).is_ok());
        Some(nginx)
    }

    pub fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }
}

/// The directives that load modules; `None` if one is not installed.
fn loaded(modules: &[&str]) -> Option<String> {
    let line = |module: &&str| {
        let file = format!("{MODULES}/ngx_{module}_module.so");
        Path::new(&file).exists().then(|| format!("load_module {file};\n"))
    };
    modules.iter().map(line).collect()
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
